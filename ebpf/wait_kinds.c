// SPDX-License-Identifier: Apache-2.0
#include "ebpf/wait_kinds.h"

#include <stddef.h>
#include <string.h>

static const struct {
	const char *name, *group;
	enum stall_wait_kind wait_kind;
	enum stall_wait_role role;
} kinds[STALL_WATCH_KINDS] = {STALL_WATCH_KIND_TABLE};

const char *stall_watch_kind_name(enum stall_watch_kind kind)
{
	return kinds[kind].name;
}

enum stall_watch_kind stall_watch_kind_of(enum stall_wait_kind kind, enum stall_wait_role role)
{
	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (kinds[i].wait_kind == kind &&
		    (kind != STALL_WAIT_FUTEX || kinds[i].role == role))
			return i;
	return STALL_WATCH_FUTEX;
}

enum stall_wait_kind stall_watch_wait_kind(enum stall_watch_kind kind)
{
	return kinds[kind].wait_kind;
}

uint32_t stall_watch_kinds_parse(const char *name)
{
	bool all = !strcmp(name, "all");
	uint32_t found = 0;

	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (!strcmp(name, kinds[i].name) ||
		    ((all || !strcmp(name, kinds[i].group)) && !stall_watch_kind_is_idle(i)))
			found |= 1u << i;
	return found;
}

uint32_t stall_watch_wait_kinds(uint32_t watched)
{
	uint32_t found = 0;

	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (watched & 1u << i)
			found |= 1u << kinds[i].wait_kind;
	return found;
}

const char *stall_wait_lost_name(enum stall_wait_lost cause)
{
	static const char *const names[STALL_LOST_CAUSES] = {STALL_LOST_NAMES};

	return names[cause];
}

const char *stall_watch_lost_name(enum stall_watch_lost cause)
{
	static const char *const names[STALL_WATCH_LOST_CAUSES] = {STALL_WATCH_LOST_NAMES};

	return names[cause];
}

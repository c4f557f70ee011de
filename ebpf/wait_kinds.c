// SPDX-License-Identifier: Apache-2.0
#include "ebpf/wait_kinds.h"

#include <stddef.h>
#include <string.h>

static const struct {
	const char *name, *group;
	enum stall_wait_kind probe;
	enum stall_wait_role role;
} kinds[STALL_WATCH_KINDS] = {
	[STALL_WATCH_MUTEX] = {"mutex", "lock", STALL_WAIT_FUTEX, STALL_ROLE_MUTEX},
	[STALL_WATCH_RWLOCK] = {"rwlock", "lock", STALL_WAIT_FUTEX, STALL_ROLE_RWLOCK},
	[STALL_WATCH_COND] = {"cond", "lock", STALL_WAIT_FUTEX, STALL_ROLE_COND},
	[STALL_WATCH_SEM] = {"sem", "lock", STALL_WAIT_FUTEX, STALL_ROLE_SEM},
	[STALL_WATCH_JOIN] = {"join", "lock", STALL_WAIT_FUTEX, STALL_ROLE_JOIN},
	[STALL_WATCH_FUTEX] = {"futex", "lock", STALL_WAIT_FUTEX, STALL_ROLE_UNKNOWN},
	[STALL_WATCH_ROW_LOCK] = {"row-lock", "lock", STALL_WAIT_FUTEX, STALL_ROLE_ROW_LOCK},
	[STALL_WATCH_METADATA_LOCK] = {"metadata-lock", "lock", STALL_WAIT_FUTEX,
				       STALL_ROLE_METADATA_LOCK},
	[STALL_WATCH_COMMIT] = {"commit", "lock", STALL_WAIT_FUTEX, STALL_ROLE_COMMIT},
	[STALL_WATCH_FSYNC] = {"fsync", "sync", STALL_WAIT_FSYNC, 0},
	[STALL_WATCH_FDATASYNC] = {"fdatasync", "sync", STALL_WAIT_FDATASYNC, 0},
	[STALL_WATCH_SYNC_FILE_RANGE] = {"sync_file_range", "sync", STALL_WAIT_SYNC_FILE_RANGE, 0},
	[STALL_WATCH_MSYNC] = {"msync", "sync", STALL_WAIT_MSYNC, 0},
	[STALL_WATCH_SYNCFS] = {"syncfs", "sync", STALL_WAIT_SYNCFS, 0},
	[STALL_WATCH_FALLOCATE] = {"fallocate", "space", STALL_WAIT_FALLOCATE, 0},
	[STALL_WATCH_FTRUNCATE] = {"ftruncate", "space", STALL_WAIT_FTRUNCATE, 0},
	[STALL_WATCH_EXTEND] = {"extend", "space", STALL_WAIT_EXTEND, 0},
	[STALL_WATCH_UNLINK] = {"unlink", "space", STALL_WAIT_UNLINK, 0},
	[STALL_WATCH_RENAME] = {"rename", "space", STALL_WAIT_RENAME, 0},
	[STALL_WATCH_READ] = {"read", "io", STALL_WAIT_READ, 0},
	[STALL_WATCH_WRITE] = {"write", "io", STALL_WAIT_WRITE, 0},
};

const char *stall_watch_kind_name(enum stall_watch_kind kind)
{
	return kinds[kind].name;
}

enum stall_watch_kind stall_watch_kind_of(enum stall_wait_kind kind, enum stall_wait_role role)
{
	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (kinds[i].probe == kind && (kind != STALL_WAIT_FUTEX || kinds[i].role == role))
			return i;
	return STALL_WATCH_FUTEX;
}

enum stall_wait_kind stall_watch_kind_probe(enum stall_watch_kind kind)
{
	return kinds[kind].probe;
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

uint32_t stall_watch_kinds_probes(uint32_t wanted)
{
	uint32_t probes = 0;

	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (wanted & 1u << i)
			probes |= 1u << kinds[i].probe;
	return probes;
}

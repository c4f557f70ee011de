// SPDX-License-Identifier: Apache-2.0
// The kinds of waits as people read them: a wait on a futex is one for a mutex, a condition, ...
// They and the causes of loss are rows of stallscope/model/waitkinds.py.
#ifndef STALL_WAIT_KINDS_H
#define STALL_WAIT_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"

const char *stall_watch_kind_name(enum stall_watch_kind kind);
enum stall_watch_kind stall_watch_kind_of(enum stall_wait_kind kind, enum stall_wait_role role);
enum stall_wait_kind stall_watch_wait_kind(enum stall_watch_kind kind);

// The kinds (1 << enum stall_watch_kind) of a name: a kind, a group (lock, sync, space, io) or
// "all". No group has those that are idle. 0: there is no such name.
uint32_t stall_watch_kinds_parse(const char *name);
// The kinds (1 << enum stall_wait_kind) of which these are.
uint32_t stall_watch_wait_kinds(uint32_t kinds);

// Threads that wait for work or for the end of another are no stall, however long they do.
static inline bool stall_watch_kind_is_idle(enum stall_watch_kind kind)
{
	return STALL_WATCH_IDLE >> kind & 1;
}

// Each waiter has a futex word of its own, and the server names what all of them wait for.
static inline bool stall_watch_kind_is_named(enum stall_watch_kind kind)
{
	return STALL_WATCH_NAMED >> kind & 1;
}

const char *stall_wait_lost_name(enum stall_wait_lost cause); // "ring-full"
const char *stall_watch_lost_name(enum stall_watch_lost cause);

#endif

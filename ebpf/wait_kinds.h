// SPDX-License-Identifier: Apache-2.0
// The kinds of waits as users see them: a futex wait is one for a mutex, a condition, ... The kinds
// and the causes of loss are rows of stallscope/model/waitkinds.py.
#ifndef STALL_WAIT_KINDS_H
#define STALL_WAIT_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"

const char *stall_watch_kind_name(enum stall_watch_kind kind);
enum stall_watch_kind stall_watch_kind_of(enum stall_wait_kind kind, enum stall_wait_role role);
enum stall_wait_kind stall_watch_wait_kind(enum stall_watch_kind kind);

// The kinds (1 << enum stall_watch_kind) of a name: a kind, a group (lock, sync, space, io) or
// "all". No group contains idle kinds. 0: there is no such name.
uint32_t stall_watch_kinds_parse(const char *name);
// The kinds (1 << enum stall_wait_kind) that these belong to.
uint32_t stall_watch_wait_kinds(uint32_t kinds);

// A thread that waits for work, or for the end of another thread, is no stall, however long it
// waits.
static inline bool stall_watch_kind_is_idle(enum stall_watch_kind kind)
{
	return STALL_WATCH_IDLE >> kind & 1;
}

// Each waiter has its own futex word, and the server names the lock that all of them wait for.
static inline bool stall_watch_kind_is_named(enum stall_watch_kind kind)
{
	return STALL_WATCH_NAMED >> kind & 1;
}

const char *stall_wait_lost_name(enum stall_wait_lost cause); // "ring-full"
const char *stall_watch_lost_name(enum stall_watch_lost cause);

#endif

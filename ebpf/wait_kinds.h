// SPDX-License-Identifier: Apache-2.0
// The kinds of waits as people read them: a wait on a futex is one for a mutex, a condition, ...
#ifndef STALL_WAIT_KINDS_H
#define STALL_WAIT_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"

// In the order of docs/waits-schema.md.
enum stall_watch_kind {
	STALL_WATCH_MUTEX,
	STALL_WATCH_RWLOCK,
	STALL_WATCH_COND,
	STALL_WATCH_SEM,
	STALL_WATCH_JOIN,
	STALL_WATCH_FUTEX,
	STALL_WATCH_ROW_LOCK,
	STALL_WATCH_METADATA_LOCK,
	STALL_WATCH_COMMIT,
	STALL_WATCH_FSYNC,
	STALL_WATCH_FDATASYNC,
	STALL_WATCH_SYNC_FILE_RANGE,
	STALL_WATCH_MSYNC,
	STALL_WATCH_SYNCFS,
	STALL_WATCH_FALLOCATE,
	STALL_WATCH_FTRUNCATE,
	STALL_WATCH_EXTEND,
	STALL_WATCH_UNLINK,
	STALL_WATCH_RENAME,
	STALL_WATCH_READ,
	STALL_WATCH_WRITE,
	STALL_WATCH_KINDS,
};

const char *stall_watch_kind_name(enum stall_watch_kind kind);
enum stall_watch_kind stall_watch_kind_of(enum stall_wait_kind kind, enum stall_wait_role role);
enum stall_wait_kind stall_watch_kind_probe(enum stall_watch_kind kind);

// The kinds (1 << enum stall_watch_kind) of a name: a kind, a group (lock, sync, space, io) or
// "all". No group has those that are idle. 0: there is no such name.
uint32_t stall_watch_kinds_parse(const char *name);
// The probes (1 << enum stall_wait_kind) that these kinds need.
uint32_t stall_watch_kinds_probes(uint32_t kinds);

// Threads that wait for work or for the end of another are no stall, however long they do.
static inline bool stall_watch_kind_is_idle(enum stall_watch_kind kind)
{
	return kind == STALL_WATCH_COND || kind == STALL_WATCH_JOIN;
}

#endif

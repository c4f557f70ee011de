// SPDX-License-Identifier: Apache-2.0
// Locks that a server keeps in structures of its own: metadata locks, locks of rows, InnoDB's latches.
// Their waiters sleep on a condition variable or a word that does not name the owner; with the layout
// of the build the structures do.
#ifndef STALL_MEMORY_LOCKS_H
#define STALL_MEMORY_LOCKS_H

#include <stddef.h>

#include "base/error.h"
#include "base/layout.h"
#include "lock/lock.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_memory_layouts {
	const struct stall_layout *given; // of the build: wins over the others; or NULL
	// By version: "SERVER FROM UNTIL KEY=NUMBER ...", where SERVER is mysql or mariadb.
	const char *const *by_version;
	size_t count;
};

// Checks the form of one of `by_version`.
struct stall_error *stall_memory_layouts_check(const char *text);

struct stall_memory_locks;

// The layouts are not copied. What is known of a process is kept for its next captures.
struct stall_error *stall_memory_locks_create(const struct stall_memory_layouts *layouts,
					      struct stall_memory_locks **ret);
void stall_memory_locks_destroy(struct stall_memory_locks *memory);

// Before the stacks are copied: finds the layout of each process, and its globals.
struct stall_error *stall_memory_locks_prepare(struct stall_memory_locks *memory,
					       const struct stall_snapshot *snapshot,
					       struct stall_worker *worker);
// Right after: reads what the threads wait for, of the same moment.
struct stall_error *stall_memory_locks_read(struct stall_memory_locks *memory,
					    const struct stall_snapshot *snapshot);
// Replaces the locks of threads for which the memory of their server names another.
struct stall_error *stall_memory_locks_apply(const struct stall_memory_locks *memory,
					     struct stall_locks *locks,
					     const struct stall_snapshot *snapshot,
					     const struct stall_unwound *unwound);

#endif

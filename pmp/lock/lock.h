// SPDX-License-Identifier: Apache-2.0
// Decoding of lock words: which lock a thread waits for, of what kind, and who owns it.
// Layouts: glibc 2.4 to 2.43 on x86-64 (nptl/pthreadtypes, sysdeps/nptl/bits/struct_mutex.h,
// struct_rwlock.h).
#ifndef STALL_LOCK_H
#define STALL_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "lock/lock_layout.h"
#include "lock/lock_names.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_lock {
	uint32_t process;
	uint64_t address; // of the lock object, not of the futex word
	uint64_t futex;	  // a word that threads wait on; 0 not known
	enum stall_lock_kind kind;
	pid_t owner_tid;  // in our pid namespace; 0 none or unknown
	pid_t owner_raw;  // as in memory
	uint32_t readers; // rwlock: how many hold it for reading
	bool stable;	  // the word did not change while it was read
	uint32_t waiters; // threads of this capture
	char *symbol;	  // NULL: not a global; of a server's own lock, the locked object
	uint64_t symbol_offset;
	const char *source; // static; NULL: "futex"
	const char *mode;   // how it is held, or that a waiter wants, static; NULL unknown
	char *created;	    // "file:line" that made it, or NULL
};

// Whether a capture would show them alike, but for the name.
bool stall_lock_is_same(const struct stall_lock *a, const struct stall_lock *b);
// The order of a list of locks: by process, address, kind and owner.
int stall_lock_compare(const struct stall_lock *a, const struct stall_lock *b);

struct stall_locks {
	struct stall_lock *locks;
	size_t count;
	uint32_t *thread_lock;	     // per thread of the snapshot: index into locks, or UINT32_MAX
	enum stall_wait_name *names; // per thread: what its frames show
};

// `before`: of the capture before in a burst, which has the frames of unchanged threads; or NULL.
struct stall_error *stall_locks_init(struct stall_locks *locks,
				     const struct stall_snapshot *snapshot,
				     const struct stall_unwound *unwound,
				     const struct stall_locks *before);
void stall_locks_deinit(struct stall_locks *locks);

// A lock that the server's own tables say a thread waits for, and its owner.
struct stall_lock_of_server {
	uint32_t thread;
	struct stall_lock lock; // `symbol` is not owned
};
// Adds such locks, one for each owner of a lock, to threads that wait for no other lock, or for one
// that only puts them to sleep meanwhile.
struct stall_error *stall_locks_add(struct stall_locks *locks,
				    const struct stall_snapshot *snapshot,
				    const struct stall_lock_of_server *found, size_t count);
// Makes room for more of them.
bool stall_locks_room(struct stall_locks *locks, size_t more);
// Sorts them, without those that no thread waits for any more.
struct stall_error *stall_locks_sort(struct stall_locks *locks, size_t thread_count);

// Names the locks through the worker's data symbols.
struct stall_error *stall_locks_name(struct stall_locks *locks, struct stall_worker *worker,
				     const struct stall_snapshot *snapshot);

// The operation according to the innermost frames: libc's functions up to the first other one.
enum stall_wait_name stall_lock_wait_name(const struct stall_unwound *unwound,
					  const struct stall_stack *stack);

#endif

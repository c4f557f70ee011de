// SPDX-License-Identifier: Apache-2.0
// One futex wait decoded: what kind of lock the word belongs to, where the lock begins, who owns it.
#ifndef STALL_LOCK_LAYOUT_H
#define STALL_LOCK_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "lock/lock_names.h"
#include "snapshot/snapshot.h"

enum stall_lock_kind {
	STALL_LOCK_UNKNOWN, // a futex of the program's own
	STALL_LOCK_MUTEX,
	STALL_LOCK_RWLOCK,
	STALL_LOCK_COND,
	STALL_LOCK_SEM,
	STALL_LOCK_JOIN,     // pthread_join: the word is the TID of the thread waited for
	STALL_LOCK_INTERNAL, // of libc's own (malloc arena, time zone) or the server's: no owner kept
	// Of the server's own, that its memory names.
	STALL_LOCK_ROW,
	STALL_LOCK_TABLE,
	STALL_LOCK_AUTO_INC,
	STALL_LOCK_METADATA,
};
const char *stall_lock_kind_name(enum stall_lock_kind kind);

// The threads of a process by the TID that stands in its lock words.
struct stall_lock_tids {
	struct stall_lock_tid {
		uint32_t process;
		pid_t ns_tid;
		const struct stall_thread *thread;
	} * tids; // sorted
	size_t count;
};

struct stall_error *stall_lock_tids_init(struct stall_lock_tids *tids,
					 const struct stall_snapshot *snapshot);
void stall_lock_tids_deinit(struct stall_lock_tids *tids);

// NULL where it is no thread of the process.
const struct stall_thread *stall_lock_tids_find(const struct stall_lock_tids *tids,
						uint32_t process, pid_t ns_tid);

// What the futex call asks for.
struct stall_lock_wait {
	uint32_t process;
	uint64_t address;
	uint32_t operation; // without the flags
	bool private;	    // FUTEX_PRIVATE_FLAG
	uint32_t value;	    // that the word was expected to have
};

struct stall_lock_decoded {
	enum stall_lock_kind kind;
	uint64_t address; // of the lock object
	pid_t owner;	  // as it stands in memory
	uint32_t readers;
};

// `name` comes from the frames. Without one (STALL_WAIT_FOREIGN, STALL_WAIT_HELPER) a kind is only
// decided where the bytes leave no doubt. `futex` may be NULL: memory could not be read.
struct stall_lock_decoded stall_lock_decode(const struct stall_lock_wait *wait,
					    enum stall_wait_name name,
					    const struct stall_futex *futex,
					    const struct stall_lock_tids *tids);

// The same of a pthread object whose kind is known by the call that waits for it; `futex` has the
// words around the object itself.
struct stall_lock_decoded stall_lock_decode_object(enum stall_object kind, uint64_t address,
						   const struct stall_futex *futex);

#endif

// SPDX-License-Identifier: Apache-2.0
// The role of a futex word: the kind of its lock, the lock's start, its owner.
#ifndef STALL_WAIT_ROLES_H
#define STALL_WAIT_ROLES_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"
#include "lock/lock_layout.h"
#include "unwind/worker.h"
#include "waits/wait_process.h"

struct stall_wait_identity {
	enum stall_wait_role role;
	uint64_t object;	     // address of the lock
	bool has_owner;		     // its words name the owner
	pid_t owner_tid;	     // in our pid namespace; 0 unknown or none
	struct stall_lock_wait wait; // to read the owner again
	enum stall_wait_name name;
};

// The wait of a record, in the terms of pmp/lock.
struct stall_lock_wait stall_wait_of_record(const struct stall_wait_record *record,
					    uint32_t process);

// The operation of a wait for a pthread object with this role; 0: unknown.
uint32_t stall_wait_operation_of(enum stall_wait_role role);

// Reads the bytes around a futex word. False: they cannot be read.
bool stall_wait_read_word(const struct stall_wait_process *process, uint64_t address,
			  struct stall_futex *ret);

// By the frames of the waiter first, then by the words of the lock. A wait inside a server's own
// wait function is one for that lock, whatever libc function it sleeps in.
void stall_wait_identify(const struct stall_unwound *unwound, const struct stall_stack *stack,
			 const struct stall_lock_wait *wait, const struct stall_futex *futex,
			 struct stall_wait_process *process, struct stall_wait_identity *ret);

// The present owner of a known lock, by its words.
pid_t stall_wait_owner(struct stall_wait_process *process, const struct stall_lock_wait *wait,
		       enum stall_wait_name name, const struct stall_futex *futex);

// The role of a wait inside a function, by its name in the symbol table or, of those without a
// mangled name, its name: STALL_ROLE_UNKNOWN for any but the servers' wait functions.
enum stall_wait_role stall_wait_role_of_function(const char *linkage);

#endif

// SPDX-License-Identifier: Apache-2.0
// The lock or file that a thread waits for, from its system call in /proc.
#ifndef STALL_POLL_CALLS_H
#define STALL_POLL_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"
#include "ebpf/waits_calls.h"
#include "proc/target.h"
#include "snapshot/proc_thread.h"
#include "sources/poll_files.h"

struct stall_poll_call {
	struct stall_wait_key key;
	uint32_t operation; // as in a record
	uint64_t value, size;
	int fd;		       // of a file that is known by one, else -1
	uint32_t mode;	       // of it
	char path[STALL_PATH]; // "": it has none
};

// The kind of wait of a call that is not for a futex; `file` NULL: not by a descriptor.
// STALL_WAIT_KINDS: none of `kinds` (bit of each).
enum stall_wait_kind stall_poll_kind(const struct stall_call *calls, uint32_t kinds,
				     const struct stall_proc_syscall *call,
				     const struct stall_poll_file *file, uint64_t size);

// For a call of which stall_poll_is_wait() is true. False: it is no wait of these kinds after all
// (a socket), or its lock or file cannot be found any more.
bool stall_poll_call_describe(const struct stall_target *target, const struct stall_call *calls,
			      uint32_t kinds, const struct stall_proc_syscall *call,
			      struct stall_poll_call *ret);

#endif

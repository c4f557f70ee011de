// SPDX-License-Identifier: Apache-2.0
// One thread as /proc shows it, and the copy of its stack: for backends that do without BPF.
#ifndef STALL_PROC_THREAD_H
#define STALL_PROC_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

// The kernel's PID_MAX_LIMIT: no process has more threads.
#define STALL_MAX_TIDS (1 << 22)

// The contents of /proc/PID/task/TID/syscall.
struct stall_proc_syscall {
	bool blocked;	// else it runs, or is ready to: nothing else is known
	int64_t number; // -1: blocked, but not in a system call
	uint64_t args[6];
	uint64_t sp, pc;
};

// From the text of that file. False: it is in no known format.
bool stall_proc_syscall_parse(const char *text, struct stall_proc_syscall *ret);
bool stall_proc_syscall_is_same(const struct stall_proc_syscall *a,
				const struct stall_proc_syscall *b);

// STALL_ERROR_NO_PROCESS: the thread has ended.
struct stall_error *stall_proc_syscall_read(const struct stall_target *target, pid_t tid,
					    struct stall_proc_syscall *ret);

// Fills comm, state, ns_tid and switches from /proc/PID/task/TID/status.
struct stall_error *stall_proc_status_read(const struct stall_target *target, pid_t tid,
					   struct stall_thread *thread);

// Adds the threads of all processes to the snapshot, zeroed but for tid and process.
struct stall_error *stall_proc_list_threads(struct stall_snapshot *snapshot,
					    const struct stall_snapshot_options *options);

#endif

// SPDX-License-Identifier: Apache-2.0
// One thread of a process, polled through /proc: whether it is still blocked in the same system
// call as in the previous pass.
#ifndef STALL_POLL_THREAD_H
#define STALL_POLL_THREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ebpf/waits.h"
#include "ebpf/waits_calls.h"
#include "proc/target.h"
#include "snapshot/call_mode.h"
#include "snapshot/proc_thread.h"
#include "waits/wait_source.h"

#define STALL_POLL_NO_SLOT UINT32_MAX

// Changes when a thread has left its call and made the same call again.
struct stall_poll_mark {
	bool has_transfers;
	uint64_t transfers; // reads and writes that it has ended
	uint64_t below;	    // hash of what lies below its stack pointer; 0: not needed
};

// What it did when it was sampled.
struct stall_poll_doing {
	bool is_known; // it was in the poller's `call`, and has done the same since, if it has not run
	uint64_t runs;
	char state;
	int32_t call;
	struct stall_wait_key key;
	char channel[STALL_CHANNEL];
};

struct stall_poll_thread {
	pid_t tid;
	int runs_fd, call_fd; // -1: opened for each pass
	uint32_t call_reads;
	uint64_t runs; // how often it has got a CPU
	bool asleep;   // since `runs` was read
	bool in_wait;  // `call` is a wait, and it may be in it still
	bool is_futex; // of that wait
	bool unwanted; // no wait that is watched
	bool ignored;  // it is not polled
	struct stall_proc_syscall call;
	struct stall_poll_mark mark;
	uint64_t since_ns, seen_ns; // in `call`: the first and the latest pass
	uint64_t polled_ns;	    // the latest of all
	uint32_t slot;
	struct stall_poll_doing doing;
};

// Reads the files. Open descriptors save path walks, but each costs the kernel some 5 KiB.
struct stall_poll_reader {
	const struct stall_call *calls; // STALL_CALLS
	bool by_status; // the kernel keeps no schedstat: the same from the larger status file
	size_t runs_left, calls_left;	 // descriptors that may still be kept
	struct stall_call_places places; // of the programs that run now
};

enum stall_poll_result {
	STALL_POLL_GONE,    // or ignored
	STALL_POLL_REFUSED, // not readable, now
	STALL_POLL_RUNS,    // on a CPU, or about to be
	STALL_POLL_SAME,    // in the same call as in the previous pass
	STALL_POLL_OTHER,   // blocked in another one, now in `call`
};

// Whether this is a wait for a futex or a file, by its number and operation alone.
bool stall_poll_is_wait(const struct stall_call *calls, const struct stall_proc_syscall *call,
			bool *ret_futex);

// `task` is a descriptor of /proc/PID/task.
enum stall_poll_result stall_poll_thread_read(struct stall_poll_reader *reader,
					      const struct stall_target *target, int task,
					      struct stall_poll_thread *thread);
// Whether it is still in `call`; changes nothing.
bool stall_poll_thread_is_same(struct stall_poll_reader *reader, const struct stall_target *target,
			       int task, const struct stall_poll_thread *thread);

// Reads a file of a thread; returns 0 or an errno. *kept: its descriptor, -1: none, which stays
// open where there is a `left` to count down. Both may be NULL.
int stall_poll_read_file(int task, pid_t tid, const char *name, int *kept, size_t *left, char *text,
			 size_t size);

struct stall_poll_thread *stall_poll_thread_create(pid_t tid); // NULL without memory
void stall_poll_thread_destroy(struct stall_poll_reader *reader, struct stall_poll_thread *thread);

// From the texts of schedstat (its third number) and io. False: not there.
bool stall_poll_parse_runs(const char *text, uint64_t *ret);
bool stall_poll_parse_transfers(const char *text, uint64_t *ret);

#endif

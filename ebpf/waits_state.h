// SPDX-License-Identifier: Apache-2.0
// The state of the loaded wait programs, which the parts of the loader share.
#ifndef STALL_WAITS_STATE_H
#define STALL_WAITS_STATE_H

#include <bpf/libbpf.h>
#include <sys/syscall.h>

#include "ebpf/fair_share.h"
#include "ebpf/grace_period.h"
#include "ebpf/passes.h"
#include "ebpf/task_iterator.h"
#include "ebpf/uprobes.h"
#include "ebpf/wait_handler.h"
#include "ebpf/waits_calls.h"
#include "ebpf/waits_options.h"
// Needs their types.
#include "waits.skel.h"

#define STALL_MAX_WAIT_PROGRAMS 16

struct stall_waits_target {
	pid_t pid;     // in our pid namespace
	uint32_t tgid; // the kernel's number
};

struct stall_uprobes {
	struct stall_uprobe_place {
		struct bpf_link *link; // NULL at rest, and where the kernel refused
		struct stall_bpf_uprobe uprobe;
		int file;
	} * places;
	size_t count, capacity;
	const char *why_not; // NULL where this kernel supports it
};

// Numbers as stall_bpf_waits_ignore() was given them; tid 0: free.
struct stall_ignored_thread {
	pid_t pid, tid;
};

#define STALL_CLOCK_PASSES 8

struct stall_passes {
	struct stall_passes_of { // a process
		pid_t pid;
		struct bpf_link *link; // of the iterator
	} * processes;
	size_t count;
	uint32_t number;
	uint64_t clocks[STALL_CLOCK_PASSES]; // pass_clock of the latest, by number
	struct stall_bpf_records nothing;    // of passes without samples
};

struct stall_bpf_waits {
	struct stall_bpf_waits_options options;
	struct waits *skeleton;
	struct ring_buffer *ring, *alarms;
	int epoll; // of both
	struct stall_grace_period grace_period;
	// Mapped.
	struct stall_wait_slot *slots;
	struct stall_wait_stat *stats;
	uint64_t *threads;
	struct stall_pass *passes;
	uint64_t *made_stats; // index of the stat + 1
	size_t slot_count, stat_count, thread_count;
	uint32_t stat_mask;
	bool has_timer;
	bool by_perf;  // perf events run the programs of system calls
	bool no_limit; // the kernel refused to limit the iterator to a process
	bool attached;
	bool missed_is_known;	  // of programs that are not attached: it stays as it is
	uint64_t missed;	  // events, by all programs
	int64_t call_added_ns;	  // by the programs, to each system call of the host; -1: unknown
	struct stall_passes pass; // of passes_loader.c
	struct stall_ignored_thread ignored[STALL_MAX_IGNORED];
	struct stall_waits_target *targets;
	size_t target_count;
	struct stall_wait_program programs[STALL_MAX_WAIT_PROGRAMS];
	size_t program_count;
	// While records are delivered.
	const struct stall_wait_handler *handler;
	size_t delivered, max;
	// Of uprobes_loader.c and async_loader.c.
	struct stall_uprobes uprobes;
	const char *async_why_not, *async_submit;
	// Of storage_loader.c; the array is mapped as `stats`, for reading alone.
	const struct stall_storage_stat *storage;
	const char *dirty_why_not;
};

#endif

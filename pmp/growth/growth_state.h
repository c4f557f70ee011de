// SPDX-License-Identifier: Apache-2.0
// The parts of a running record, shared by the files of this folder.
#ifndef STALL_GROWTH_STATE_H
#define STALL_GROWTH_STATE_H

#include "base/arena.h"
#include "ebpf/growth_loader.h"
#include "growth/growth_options.h"
#include "growth/growth_pages.h"
#include "growth/growth_sums.h"
#include "growth/heap_slack.h"
#include "growth/mappings.h"
#include "growth/resident.h"
#include "waits/wait_process.h"
#include "waits/wait_stacks.h"
#include "waits/wait_unwind.h"

#define STALL_GROWTH_BATCH 256
#define STALL_GROWTH_MAX_THREADS 65536

struct stall_growth_thread {
	pid_t tid;
	char comm[STALL_COMM];
};

// Of the whole process, in pages of STALL_PAGE.
struct stall_growth_totals {
	uint64_t added;	    // there at the end, and not at the start
	uint64_t freed;	    // the other way round
	uint64_t seen;	    // of `added`: somebody's fault was seen
	uint64_t populated; // of `added`: made by the kernel; shared out among its calls
};

struct stall_growth {
	struct stall_growth_options options;
	struct stall_arena arena;
	struct stall_worker *worker;
	struct stall_wait_processes processes;
	struct stall_wait_stacks *stacks;
	struct stall_wait_unwinder *unwinder;
	struct stall_bpf_growth_handler handler;
	struct stall_bpf_growth *bpf;
	struct stall_error *failed; // in a handler

	struct stall_wait_item items[STALL_GROWTH_BATCH];
	struct stall_growth_fault faults[STALL_GROWTH_BATCH]; // of the items
	size_t item_count;

	struct stall_growth_pages pages;
	struct stall_touchers touchers;
	struct stall_hashed_stacks hashed;
	struct stall_growth_thread *threads;
	size_t thread_count;

	struct stall_growth_mappings before, after;
	struct stall_resident resident_before, resident_after;
	struct stall_growth_totals totals;
	struct stall_heap_slack slack;
	uint64_t started_ns, ended_ns;
	bool ended; // the process: there is no `after`
};

#endif

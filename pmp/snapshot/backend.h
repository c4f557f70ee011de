// SPDX-License-Identifier: Apache-2.0
// The ways to fill a snapshot. Each fills threads, futexes, notes, snapshot_ns and labels.
#ifndef STALL_BACKEND_H
#define STALL_BACKEND_H

#include <stdbool.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

struct stall_backend {
	const char *name;
	bool stops_threads;
	// NULL when it would work here for this user; else why not, and what would make it work.
	struct stall_error *(*check)(const struct stall_snapshot_options *options);
	// State kept between captures (loaded BPF programs, buffers); may set *ret to NULL.
	struct stall_error *(*open)(const struct stall_snapshot_options *options, void **ret);
	// Where the mappings of its snapshots come from; NULL: /proc/PID/maps.
	struct stall_error *(*create_maps)(void *state, const struct stall_target *target,
					   struct stall_maps *previous,
					   struct stall_open_files *files, struct stall_maps **ret);
	struct stall_error *(*capture)(void *state, struct stall_snapshot *snapshot,
				       const struct stall_snapshot_options *options);
	// Which of these threads ran since their copies were settled: ret[i] is of threads[i], an
	// index into snapshot->threads. Asked for the snapshot captured last, after memory outside
	// its copies was read. NULL: its snapshots read none (stall_snapshot.memory).
	struct stall_error *(*find_runs)(void *state, const struct stall_snapshot *snapshot,
					 const uint32_t *threads, size_t count, bool *ret);
	void (*close)(void *state);
};

// Of this folder; rings/snap_inproc.h has one more.
extern const struct stall_backend stall_backend_bpf;	// snap_bpf.c
extern const struct stall_backend stall_backend_proc;	// snap_proc.c
extern const struct stall_backend stall_backend_ptrace; // snap_ptrace.c

#endif

// SPDX-License-Identifier: Apache-2.0
// The ways to fill a snapshot. Each fills threads, futexes, notes, snapshot_ns and labels.
#ifndef STALL_BACKEND_H
#define STALL_BACKEND_H

#include <stdbool.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

struct stall_backend {
	const char *name;
	const char *feature; // its name in stallscope.features/1
	bool stops_threads;
	bool follows; // its captures can be of a burst: stall_snapshot.before
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

// All that can be chosen, in the order of preference: exact and never stopping; exact for the price
// of a stop; neither exact nor whole, but without privileges; without any right, of processes that
// record themselves (rings/snap_inproc.c). The others are in snap_*.c here.
#define STALL_BACKENDS(BACKEND)                                                                    \
	BACKEND(bpf)                                                                               \
	BACKEND(ptrace)                                                                            \
	BACKEND(proc)                                                                              \
	BACKEND(inproc)

#define STALL_DECLARE_BACKEND(name) extern const struct stall_backend stall_backend_##name;
STALL_BACKENDS(STALL_DECLARE_BACKEND)
#undef STALL_DECLARE_BACKEND

#endif

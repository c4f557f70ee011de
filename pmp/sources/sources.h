// SPDX-License-Identifier: Apache-2.0
// The three sources of waits, and which of them is used.
#ifndef STALL_SOURCES_H
#define STALL_SOURCES_H

#include <sys/types.h>

#include "waits/wait_source.h"

void stall_wait_source_options_init(struct stall_wait_source_options *options);

// `pids`: of the processes that will be watched. Of itself it takes the wait programs where they work, else
// rings where all of these have one, else /proc.
struct stall_error *stall_wait_source_init(struct stall_wait_source *source,
					   const struct stall_wait_source_options *options,
					   const pid_t *pids, size_t pid_count);
void stall_wait_source_deinit(struct stall_wait_source *source);

// Waits from /proc, polled. `why_not_bpf`: what is said of the wait programs; NULL: they are not asked for.
struct stall_error *stall_wait_source_poll(const struct stall_wait_source_options *options,
					   const char *why_not_bpf, struct stall_wait_source *ret);

// Waits from the rings of servers that have the in-process library. Where the thresholds of a ring cannot be written, it keeps those that it has.
struct stall_error *stall_wait_source_ring(const struct stall_wait_source_options *options,
					   struct stall_wait_source *ret);

// Waits from the BPF programs. An error where this program was built without BPF.
struct stall_error *stall_wait_source_bpf(const struct stall_wait_source_options *options,
					  struct stall_wait_source *ret);

#endif

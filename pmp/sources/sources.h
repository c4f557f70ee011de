// SPDX-License-Identifier: Apache-2.0
// The three sources of waits, and which of them is used.
#ifndef STALL_SOURCES_H
#define STALL_SOURCES_H

#include <sys/types.h>

#include "waits/wait_source.h"

void stall_wait_source_options_init(struct stall_wait_source_options *options);

// `pids`: the processes that will be watched. By default it uses the wait programs where they work,
// else rings where all of these processes have one, else /proc.
struct stall_error *stall_wait_source_init(struct stall_wait_source *source,
					   const struct stall_wait_source_options *options,
					   const pid_t *pids, size_t pid_count);
void stall_wait_source_deinit(struct stall_wait_source *source);

// Waits from /proc, polled. `why_not_bpf`: why the wait programs are not used; NULL: they were not
// requested.
struct stall_error *stall_wait_source_poll(const struct stall_wait_source_options *options,
					   const char *why_not_bpf, struct stall_wait_source *ret);

// Waits from the rings of servers that have the in-process library. Where the thresholds of a ring
// cannot be written, it keeps those that it has.
struct stall_error *stall_wait_source_ring(const struct stall_wait_source_options *options,
					   struct stall_wait_source *ret);

// Waits from the BPF programs. An error where this program was built without BPF.
struct stall_error *stall_wait_source_bpf(const struct stall_wait_source_options *options,
					  struct stall_wait_source *ret);

#endif

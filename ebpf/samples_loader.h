// SPDX-License-Identifier: Apache-2.0
// Loads samples.bpf.c: a filter for perf events.
#ifndef STALL_SAMPLES_LOADER_H
#define STALL_SAMPLES_LOADER_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_bpf_samples;

// Processes by their pids, at most STALL_BPF_MAX_PROCESSES.
struct stall_error *stall_bpf_samples_create(const pid_t *tgids, size_t count,
					     struct stall_bpf_samples **ret);
void stall_bpf_samples_destroy(struct stall_bpf_samples *samples);
// For PERF_EVENT_IOC_SET_BPF.
int stall_bpf_samples_fd(const struct stall_bpf_samples *samples);

#endif

// SPDX-License-Identifier: Apache-2.0
// Loads samples.bpf.c: a filter for perf events.
#ifndef STALL_SAMPLES_LOADER_H
#define STALL_SAMPLES_LOADER_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_bpf_samples;

struct stall_error *stall_bpf_samples_create(struct stall_bpf_samples **ret);
// Sets the processes, by their pids, at most STALL_BPF_MAX_PROCESSES.
struct stall_error *stall_bpf_samples_choose(struct stall_bpf_samples *samples, const pid_t *tgids,
					     size_t count);
void stall_bpf_samples_destroy(struct stall_bpf_samples *samples);
// For PERF_EVENT_IOC_SET_BPF.
int stall_bpf_samples_fd(const struct stall_bpf_samples *samples);

#endif

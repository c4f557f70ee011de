// SPDX-License-Identifier: Apache-2.0
// Finds long waits while nothing is attached, and attaches the wait programs while there are some:
// passes of their threads (ebpf/passes_loader.h), when to arm (resting.h), and stacks that distinguish
// idle waits from others. A source that does not rest uses it only to sample threads.
#ifndef STALL_SENTINEL_H
#define STALL_SENTINEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/waits_loader.h"
#include "waits/wait_source.h"

struct stall_sentinel;

// `max_threads`: slots of `waits`. `rests`: the programs are not attached yet.
struct stall_error *stall_sentinel_create(struct stall_bpf_waits *waits, size_t max_threads,
					  bool rests, uint32_t kinds,
					  const uint64_t threshold_ns[STALL_WAIT_KINDS],
					  struct stall_sentinel **ret);
void stall_sentinel_destroy(struct stall_sentinel *sentinel);

struct stall_error *stall_sentinel_add(struct stall_sentinel *sentinel, pid_t pid);
void stall_sentinel_remove(struct stall_sentinel *sentinel, pid_t pid);
void stall_sentinel_set_threshold(struct stall_sentinel *sentinel, enum stall_wait_kind kind,
				  uint64_t ns);

// When to call stall_sentinel_poll, CLOCK_MONOTONIC; UINT64_MAX: never.
uint64_t stall_sentinel_due_ns(const struct stall_sentinel *sentinel);
// A pass over the threads if one is due; attaches or detaches the programs.
struct stall_error *stall_sentinel_poll(struct stall_sentinel *sentinel, uint64_t now_ns);
// Delivers stacks of waits on words that are not known yet, and processes that execute another
// program.
void stall_sentinel_deliver(struct stall_sentinel *sentinel,
			    const struct stall_wait_handler *handler);

// Whether the thread of this slot has not run since the latest pass. Without the programs nothing
// but the kernel's own count shows it.
bool stall_sentinel_slept_on(const struct stall_sentinel *sentinel, size_t slot);

bool stall_sentinel_rest(const struct stall_sentinel *sentinel, struct stall_wait_rest *ret);
// When to take a sample that is wanted at this time. stall_sentinel_poll() leaves a pass that is due
// from then on to it, so that passes and samples have one budget.
uint64_t stall_sentinel_sample_due_ns(struct stall_sentinel *sentinel, uint64_t wanted_ns);
// A pass that also reports what each thread does. The next one that is due counts from it.
struct stall_error *stall_sentinel_sample(struct stall_sentinel *sentinel, stall_sample_fn take,
					  void *arg);

#endif

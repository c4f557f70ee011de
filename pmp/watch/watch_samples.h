// SPDX-License-Identifier: Apache-2.0
// What all threads do, sampled once a second: the history of a line (waits/wait_history.h).
#ifndef STALL_WATCH_SAMPLES_H
#define STALL_WATCH_SAMPLES_H

#include <stdint.h>

#include "base/error.h"

struct stall_watch;
struct stall_wait_history;
struct stall_watch_samples;

// Of a watch whose source can sample; *ret is NULL for any other.
struct stall_error *stall_watch_samples_create(struct stall_watch *watch,
					       struct stall_watch_samples **ret);
// NULL is fine, here and below.
void stall_watch_samples_destroy(struct stall_watch_samples *samples);

// Takes a sample if one is due. Samples take at most 0.2 % of a core, and what the source allows: they
// become rarer where there are many threads.
struct stall_error *stall_watch_samples_take(struct stall_watch_samples *samples, uint64_t now_ns);
// Until then; -1: never.
int stall_watch_samples_timeout_ms(const struct stall_watch_samples *samples, uint64_t now_ns);

struct stall_wait_history *stall_watch_samples_history(const struct stall_watch_samples *samples);

// From the start of a sample that took this much CPU time (smoothed) until that of the next one.
uint64_t stall_watch_samples_interval_ns(uint64_t cost_ns);

#endif

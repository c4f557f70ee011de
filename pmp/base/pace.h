// SPDX-License-Identifier: Apache-2.0
// When a program that keeps running writes its next line, and when it ends.
#ifndef STALL_PACE_H
#define STALL_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

struct stall_pace {
	uint64_t interval_ns;
	uint64_t next_ns, end_ns; // CLOCK_MONOTONIC; UINT64_MAX: never
};

// 0: no lines; no end.
void stall_pace_init(struct stall_pace *pace, uint64_t interval_ns, uint64_t duration_ns);
bool stall_pace_ends(const struct stall_pace *pace);
bool stall_pace_is_over(const struct stall_pace *pace);
// Whether a line is due. Lines that were missed are not written later.
bool stall_pace_take(struct stall_pace *pace);
// Until the next line or the end, for poll(2): -1 for no end.
int stall_pace_timeout_ms(const struct stall_pace *pace);

#endif

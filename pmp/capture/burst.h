// SPDX-License-Identifier: Apache-2.0
// A burst: some captures at short intervals, of which one verdict is made. The caller waits between
// them, so that it can do other work.
#ifndef STALL_BURST_H
#define STALL_BURST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/output.h"
#include "capture/capturer.h"
#include "capture/records.h"

struct stall_burst_options {
	unsigned int captures;
	uint64_t interval_ns;
	uint64_t deadline_ns; // from its beginning
};
#define STALL_BURST_INTERVAL_NS UINT64_C(30000000)

struct stall_burst;

// Takes the first capture and writes it, or fails. The caller keeps the output. A capture that was
// taken already (stall_capturer_take) is the first one; `trigger` is its reason or NULL.
struct stall_error *stall_burst_begin(struct stall_capturer *capturer,
				      const struct stall_burst_options *options,
				      const struct stall_trigger *trigger, bool taken,
				      struct stall_output *output, struct stall_burst **ret);
// CLOCK_MONOTONIC when the next capture is due; 0: there is none.
uint64_t stall_burst_next_ns(const struct stall_burst *burst);
// Takes the capture that is due. Fails only where its output does: a capture that fails is counted,
// and the end of the process ends the burst.
struct stall_error *stall_burst_step(struct stall_burst *burst);
// There are no more captures; `reason` is static.
void stall_burst_stop(struct stall_burst *burst, const char *reason);
// Writes the end of the burst. *ret_partial: something is missing in one of its captures.
struct stall_error *stall_burst_finish(struct stall_burst *burst, bool *ret_partial);
// NULL is allowed.
void stall_burst_destroy(struct stall_burst *burst);

// For _cleanup_().
static inline void stall_burst_destroyp(struct stall_burst **burst)
{
	stall_burst_destroy(*burst);
}

#endif

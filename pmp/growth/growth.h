// SPDX-License-Identifier: Apache-2.0
// Which stacks make the memory of a process grow: page faults with stacks, and at the end the pages
// that are there and were not before. docs/design.md ("Memory") says why in this way.
#ifndef STALL_GROWTH_H
#define STALL_GROWTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "growth/growth_options.h"

#define STALL_GROWTH_POLL_MS 20 // between two readings of what has happened

void stall_growth_options_init(struct stall_growth_options *options);

struct stall_growth;

// Reads what the process has, and begins to record.
struct stall_error *stall_growth_create(const struct stall_growth_options *options,
					struct stall_growth **ret);
void stall_growth_destroy(struct stall_growth *growth); // NULL is fine
// Takes what has happened. *ret_ended: the process has ended, or runs another program.
struct stall_error *stall_growth_poll(struct stall_growth *growth, bool *ret_ended);
// Stops recording, and compares what the process has with what it had.
struct stall_error *stall_growth_finish(struct stall_growth *growth);

static inline void stall_growth_destroyp(struct stall_growth **growth)
{
	stall_growth_destroy(*growth);
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Waits until all BPF programs that run now have ended.
#ifndef STALL_GRACE_PERIOD_H
#define STALL_GRACE_PERIOD_H

#include "base/error.h"

// Two maps, one of which holds the other.
struct stall_grace_period {
	int outer, inner;
};
#define STALL_GRACE_PERIOD_NONE ((struct stall_grace_period){-1, -1})

struct stall_error *stall_grace_period_init(struct stall_grace_period *grace_period);
void stall_grace_period_deinit(struct stall_grace_period *grace_period);

// What a program wrote before this returns is seen, and what was written before it was called is
// seen by all programs that run afterwards. Does not wait for sleepable programs.
struct stall_error *stall_grace_period_wait(const struct stall_grace_period *grace_period);

#endif

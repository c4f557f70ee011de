// SPDX-License-Identifier: Apache-2.0
// The command "growth": which stacks make the memory of a process grow.
#ifndef STALL_GROWTH_COMMAND_H
#define STALL_GROWTH_COMMAND_H

#include <stdbool.h>

#include "base/error.h"
#include "growth/growth.h"

// Writes a line when it begins and one at the end: after the duration, on SIGINT or SIGTERM, or when
// the process ends.
struct stall_error *stall_growth_run(const struct stall_growth_options *options, int out,
				     bool *ret_partial);

#endif

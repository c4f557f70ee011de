// SPDX-License-Identifier: Apache-2.0
// Captures on request: one command a line in, JSON lines out.
#ifndef STALL_SERVE_H
#define STALL_SERVE_H

#include <stdbool.h>

#include "error.h"
#include "probe.h"

// Reads commands from `in` until "quit" or its end, answers on `out`. Fails when the target ended
// or `out` is gone; what went wrong with one capture is told in the answer.
struct stall_error *stall_serve(const struct stall_probe_options *options, bool force_overwrite,
				int in, int out);

#endif

// SPDX-License-Identifier: Apache-2.0
// Captures on request and, where waits are watched, for waits that last too long: one command per
// line in, JSON lines out, see docs/probe.md.
#ifndef STALL_SERVE_H
#define STALL_SERVE_H

#include "base/error.h"
#include "capture/capturer.h"
#include "serve/serve_options.h"
#include "watch/watch.h"

void stall_serve_options_init(struct stall_serve_options *options);

// Reads commands from `in` until "quit" or its end, answers on `out`. Fails when the target ended
// or `out` is gone; an error of one capture is reported in the answer.
struct stall_error *stall_serve(const struct stall_serve_options *options,
				const struct stall_capturer_options *capture,
				const struct stall_watch_options *watch, int in, int out);

#endif

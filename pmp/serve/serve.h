// SPDX-License-Identifier: Apache-2.0
// Captures on request, and where it watches waits, for the sake of one that lasts too long: one
// command a line in, JSON lines out, as docs/probe.md describes them.
#ifndef STALL_SERVE_H
#define STALL_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "capture/capturer.h"
#include "serve/trigger_rules.h"
#include "waits/watch.h"

struct stall_serve_options {
	bool force_overwrite;
	bool follow;	      // goes on without a process, for the next one
	bool watch;	      // from the start
	bool events;	      // a line for each wait over its threshold
	uint64_t line_ns;     // from one line of stallscope.waits/1 to the next, 0: only on request
	const char *captures; // folder of captures that a wait has taken; NULL: standard output
	struct stall_trigger_rules rules;
};
void stall_serve_options_init(struct stall_serve_options *options);

// Reads commands from `in` until "quit" or its end, answers on `out`. Fails when the target ended
// or `out` is gone; what went wrong with one capture is told in the answer.
struct stall_error *stall_serve(const struct stall_serve_options *options,
				const struct stall_capturer_options *capture,
				const struct stall_watch_options *watch, int in, int out);

#endif

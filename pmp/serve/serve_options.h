// SPDX-License-Identifier: Apache-2.0
// Options of a serving probe.
#ifndef STALL_SERVE_OPTIONS_H
#define STALL_SERVE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "capture/burst.h"
#include "serve/trigger_rules.h"

struct stall_serve_options {
	bool force_overwrite;
	bool follow;	      // keep running without a process, for the next one
	bool watch;	      // from the start
	bool events;	      // a line for each wait over its threshold
	uint64_t line_ns;     // from one line of stallscope.waits/1 to the next, 0: only on request
	const char *captures; // folder of captures that a wait has taken; NULL: standard output
	struct stall_trigger_rules rules;
	struct stall_burst_options burst; // one capture: no burst
};

#endif

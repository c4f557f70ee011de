// SPDX-License-Identifier: Apache-2.0
// The options of serve that say which waits take a capture.
#ifndef STALL_OPTIONS_SERVE_H
#define STALL_OPTIONS_SERVE_H

#include <stdbool.h>

#include "base/error.h"
#include "command/options.h"
#include "serve/serve.h"

// --capture-threshold MS or KIND=MS, where KIND may be a group.
struct stall_error *stall_options_add_capture_threshold(struct stall_serve_options *options,
							const char *text);
// --convoy N, --capture-interval MS.
struct stall_error *stall_options_set_convoy(struct stall_serve_options *options, const char *text);
struct stall_error *stall_options_set_capture_interval(struct stall_serve_options *options,
						       const char *text);
// What follows from what was said: captures that have somewhere to go are taken, and probes are on
// where their events, lines or captures are asked for.
void stall_options_complete_serve(struct stall_options *options);

#endif

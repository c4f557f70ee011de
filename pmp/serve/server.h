// SPDX-License-Identifier: Apache-2.0
// The state that the parts of a serving probe share.
#ifndef STALL_SERVER_H
#define STALL_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/layout.h"
#include "base/output.h"
#include "capture/burst.h"
#include "capture/capturer.h"
#include "proc/target.h"
#include "serve/serve_options.h"
#include "snapshot/own_threads.h"
#include "watch/watch.h"
#include "watch/watch_ignored.h"

struct stall_server {
	const struct stall_serve_options *options;
	struct stall_watch_options watch_options; // thresholds change
	int out;

	struct stall_target *targets; // to notice their end while no command runs
	size_t target_count;
	struct stall_capturer *capturer;
	struct stall_layout layout; // as the caller has said since the start

	struct stall_own_threads own;

	struct stall_watch *watch;	     // NULL: off
	uint64_t asked_ns[STALL_WAIT_KINDS]; // thresholds as requested
	uint64_t next_line_ns;
	uint64_t alerts; // of the watch, when the latest line was written
	struct stall_triggers triggers;
	// A capture whose raw copies are taken; the event that names its wait may still follow.
	bool taken;
	uint64_t taken_wait;
	// A burst that goes on, and where it is written.
	struct stall_burst *burst;
	struct stall_output *burst_output;
	char *burst_path;
	bool burst_trigger; // a wait has triggered it
	uint64_t taken_wall_ns;
	struct stall_trigger trigger;
	// A handler of the watch cannot fail: its error waits here for the loop.
	struct stall_error *failed;
};

#endif

// SPDX-License-Identifier: Apache-2.0
// The options of what is watched: which waits, from which length on, and which of them are captured.
#ifndef STALL_WATCH_OPTIONS_H
#define STALL_WATCH_OPTIONS_H

#include <stdbool.h>

#include "base/error.h"
#include "serve/serve.h"
#include "watch/watch.h"

// --kind NAME: a kind or a group. The first replaces the default, all kinds; *given: there was one.
struct stall_error *stall_option_kind(struct stall_watch_options *options, const char *text,
				      bool *given);
struct stall_error *stall_option_threshold(struct stall_watch_options *options, const char *text);
struct stall_error *stall_option_poll_interval(struct stall_watch_options *options,
					       const char *text);
// --backend of the commands that only watch: auto, bpf, inproc or poll.
struct stall_error *stall_option_watch_backend(const struct stall_watch_options *options);
struct stall_error *stall_option_capture_threshold(struct stall_serve_options *options,
						   const char *text);
struct stall_error *stall_option_convoy(struct stall_serve_options *options, const char *text);
struct stall_error *stall_option_capture_interval(struct stall_serve_options *options,
						  const char *text);

#endif

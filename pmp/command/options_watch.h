// SPDX-License-Identifier: Apache-2.0
// The options of the commands that watch waits.
#ifndef STALL_OPTIONS_WATCH_H
#define STALL_OPTIONS_WATCH_H

#include "base/error.h"
#include "serve/serve.h"
#include "watch/watch.h"

// --kind NAME: a kind or a group. The first takes the place of all kinds; *given says that there was
// one.
struct stall_error *stall_options_add_kind(struct stall_watch_options *options, const char *text,
					   bool *given);
// "MS" or "KIND=MS", where KIND may be a group.
struct stall_error *stall_options_parse_threshold(const char *option, const char *text,
						  uint32_t *ret_kinds, uint64_t *ret_ns);
// --backend of those that only watch: auto, bpf, inproc or poll.
struct stall_error *stall_options_check_backend(const struct stall_watch_options *options);
// --poll-interval MS.
struct stall_error *stall_options_set_poll_interval(struct stall_watch_options *options,
						    const char *text);
// --threshold, in that form.
struct stall_error *stall_options_add_threshold(struct stall_watch_options *options,
						const char *text);

// Of serve alone, which waits take a capture.
// --capture-threshold MS or KIND=MS, where KIND may be a group.
struct stall_error *stall_options_add_capture_threshold(struct stall_serve_options *options,
							const char *text);
// --convoy N, --capture-interval MS.
struct stall_error *stall_options_set_convoy(struct stall_serve_options *options, const char *text);
struct stall_error *stall_options_set_capture_interval(struct stall_serve_options *options,
						       const char *text);

#endif

// SPDX-License-Identifier: Apache-2.0
// Waits from /proc, polled.
#ifndef STALL_SOURCE_POLL_H
#define STALL_SOURCE_POLL_H

#include "waits/wait_source.h"

// `why_not_bpf`: what is said of the wait programs; NULL: they are not asked for.
struct stall_error *stall_wait_source_poll(const struct stall_wait_source_options *options,
					   const char *why_not_bpf, struct stall_wait_source *ret);

#endif

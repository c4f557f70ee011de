// SPDX-License-Identifier: Apache-2.0
// Waits from the rings of servers that have the in-process library.
#ifndef STALL_SOURCE_RING_H
#define STALL_SOURCE_RING_H

#include "waits/wait_source.h"

// Where the thresholds of a ring cannot be written, it keeps those that it has.
struct stall_error *stall_wait_source_ring(const struct stall_wait_source_options *options,
					   struct stall_wait_source *ret);

#endif

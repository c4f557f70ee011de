// SPDX-License-Identifier: Apache-2.0
// Drops pages of files from the page cache, by posix_fadvise(2) on descriptors for reading.
#ifndef STALL_CACHE_UNCACHE_H
#define STALL_CACHE_UNCACHE_H

#include <stdbool.h>

#include "base/error.h"
#include "cache/cache_files.h"
#include "cache/cache_plan.h"

// Counts what would go, and with `drop` drops it: no range with a dirty page, or one that is being
// written. The descriptors of the server are read again first, and decide.
struct stall_error *stall_cache_uncache(struct stall_cache_scan *scan,
					const struct stall_cache_plan *plan, bool drop);

// Counts again what was dropped: what was cached since, the server, or another, has read again.
void stall_cache_recount(struct stall_cache_scan *scan);

#endif

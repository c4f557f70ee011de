// SPDX-License-Identifier: Apache-2.0
// Finds the files of a server: what its processes have open, and what is in its folders.
#ifndef STALL_CACHE_SCAN_H
#define STALL_CACHE_SCAN_H

#include "base/error.h"
#include "cache/cache_files.h"

// Holds the processes, lists the files and counts their pages. STALL_ERROR_PERMISSION: the
// descriptors of none of the processes can be read.
struct stall_error *stall_cache_scan_init(struct stall_cache_scan *scan,
					  const struct stall_cache_options *options);
void stall_cache_scan_deinit(struct stall_cache_scan *scan);

// The descriptors once more: files that were opened meanwhile have them, too.
struct stall_error *stall_cache_scan_again(struct stall_cache_scan *scan);

#endif

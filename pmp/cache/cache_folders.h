// SPDX-License-Identifier: Apache-2.0
// The files in a server's folders.
#ifndef STALL_CACHE_FOLDERS_H
#define STALL_CACHE_FOLDERS_H

#include "cache/cache_files.h"

// Those given, and those of the files that are open.
struct stall_error *stall_cache_scan_folders(struct stall_cache_scan *scan);
void stall_cache_folders_deinit(struct stall_cache_scan *scan);

#endif

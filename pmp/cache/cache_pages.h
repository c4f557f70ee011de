// SPDX-License-Identifier: Apache-2.0
// How many pages of a file the page cache holds. No page is read, and none is mapped.
#ifndef STALL_CACHE_PAGES_H
#define STALL_CACHE_PAGES_H

#include <stdbool.h>
#include <stdint.h>

enum stall_cache_method {
	STALL_CACHE_CACHESTAT, // cachestat(2), since Linux 6.5
	STALL_CACHE_MINCORE,   // only `cached` is known
};

// In pages of the system.
struct stall_cache_counts {
	uint64_t cached;
	uint64_t dirty, writeback;
	uint64_t evicted;	   // were there; in memory file systems: are in swap
	uint64_t recently_evicted; // so recently that they would have been needed
};

uint64_t stall_cache_page_size(void);

// Found by trying.
enum stall_cache_method stall_cache_method(void);
const char *stall_cache_method_name(enum stall_cache_method method);

// The pages from `offset` on; `length` 0: all to the end. Where we have O_PATH alone (stall_path_open())
// a child counts them. Returns 0 or an errno: EPERM where the kernel shows it only to the owner, or who
// may write the file; ETIME after `until_ns` (CLOCK_MONOTONIC), or where the disk does not answer.
int stall_cache_count(int fd, enum stall_cache_method method, uint64_t offset, uint64_t length,
		      uint64_t until_ns, struct stall_cache_counts *ret);
// Drops those that are clean. Returns 0 or an errno.
int stall_cache_drop(int fd, uint64_t offset, uint64_t length);

#endif

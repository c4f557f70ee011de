// SPDX-License-Identifier: Apache-2.0
// Which files may leave the page cache: none that the server uses, or will soon.
#ifndef STALL_CACHE_PLAN_H
#define STALL_CACHE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cache/cache_files.h"

enum stall_cache_keep {
	STALL_CACHE_KEEP_NOTHING,
	STALL_CACHE_KEEP_FILES,
	STALL_CACHE_KEEP_BYTES,
	STALL_CACHE_KEEP_SECONDS,
};

struct stall_cache_plan {
	unsigned int classes; // a bit for each stall_file_class: binlog, relay and redo
	enum stall_cache_keep keep;
	uint64_t keep_value; // of each series, from its newest file on, which counts
	bool allow_redo;
	// Threads of the server that send binary logs to replicas, as it says itself; each has a
	// descriptor of the file that it reads. Negative: not known.
	int64_t dump_threads;
	uint64_t now_ns; // CLOCK_REALTIME
};

const char *stall_cache_reason_name(enum stall_cache_reason reason);

// Sets `reason` and `until` of each file.
struct stall_error *stall_cache_plan_make(struct stall_cache_scan *scan,
					  const struct stall_cache_plan *plan);

#endif

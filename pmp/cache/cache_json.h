// SPDX-License-Identifier: Apache-2.0
// One line of stallscope.probe-cache/1: docs/probe.md.
#ifndef STALL_CACHE_JSON_H
#define STALL_CACHE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json_writer.h"
#include "cache/cache_files.h"

// What the processes read from disks, by /proc/PID/io, in two times of the same length.
struct stall_cache_reads {
	uint64_t seconds_ns; // 0: not measured
	bool is_known;
	uint64_t before, after; // bytes
};

struct stall_cache_result {
	const struct stall_cache_scan *scan;
	uint64_t elapsed_ns;  // of the scan
	unsigned int uncache; // a bit for each class; 0: was not asked for
	bool dropped;
	struct stall_cache_reads reads;
};

void stall_cache_write(struct stall_json *json, const struct stall_cache_result *result);

// Whether something is missing in it.
bool stall_cache_is_partial(const struct stall_cache_scan *scan);

#endif

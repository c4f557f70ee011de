// SPDX-License-Identifier: Apache-2.0
// Scans the slots of a ring for waits in flight that have passed their threshold.
#ifndef STALL_RING_SCAN_H
#define STALL_RING_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/wait_handler.h"
#include "rings/ring_file.h"
#include "sources/ring_counts.h"

struct stall_ring_scan {
	struct stall_ring *ring;
	struct stall_ring_counts *counts;
	pid_t pid;	  // in our pid namespace
	uint32_t kinds;	  // bit of each enum stall_wait_kind to watch
	size_t first;	  // number of its slot 0 among the slots of all rings
	uint64_t next_ns; // when something is due
	struct slot_scans {
		uint32_t settled;  // seq of the wait that is not scanned again
		uint32_t reported; // seq of the wait that was reported
		uint32_t missed;   // seq of the wait whose stack was missing
		uint32_t scans;	   // so often
	} * slots;
	uint8_t *stack;			  // room for a copy
	pid_t ignored[STALL_MAX_IGNORED]; // numbers in the server's own pid namespace
	size_t ignored_count;
};

// Keeps the fields that are set in `scan`, and initializes the others.
struct stall_error *stall_ring_scan_init(struct stall_ring_scan *scan);
void stall_ring_scan_deinit(struct stall_ring_scan *scan);

// Delivers a record for each wait that is due. The next scan is due at scan->next_ns.
void stall_ring_scan_run(struct stall_ring_scan *scan, const struct stall_wait_handler *handler,
			 uint64_t now_ns);

// Of an ignored thread no wait is delivered. STALL_ERROR_LIMIT: there are STALL_MAX_IGNORED already.
struct stall_error *stall_ring_scan_ignore(struct stall_ring_scan *scan, pid_t tid, bool on);
bool stall_ring_scan_ignores(const struct stall_ring_scan *scan, pid_t tid);

// The recorder's data, in the terms of the other sources.
void stall_ring_record_settle(const struct stall_ring_scan *scan, struct stall_wait_record *record);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The latest records of ended waits, with stacks, in a ring buffer of cells. */
#ifndef STALL_RECORDER_RECORDS_H
#define STALL_RECORDER_RECORDS_H

#include "inproc/recorder_slots.h"

struct recorder_event {
	enum stall_wait_record_type type;
	struct stall_wait_key key;
	uint32_t operation, seq, flags;
	uint64_t start_ns, now_ns, value, size;
	int64_t result;
	const uint8_t *words; /* NULL: not known */
	const struct recorder_place *place;
};
/* False: the record was lost, which is counted. */
bool recorder_record(struct recorder_ring *ring, struct recorder_thread *thread,
		     const struct recorder_event *event);
/* The rate limit: a thousand records per second in total, and where `last_ns` is given, one of the
 * stat per tenth of a second. False: refused, which is counted. */
bool recorder_may_record(struct recorder_ring *ring, struct stall_wait_stat *stat, uint32_t role,
			 uint64_t *last_ns, uint64_t now);
/* Whether the caller is the first after the pause. */
bool recorder_is_due(uint64_t *last_ns, uint64_t now, uint64_t pause_ns);

#endif

// SPDX-License-Identifier: Apache-2.0
// A stat for each key, as the BPF programs keep them (waits_stats.bpf.h).
#include "inproc/recorder_private.h"

#define MAX_TRIES 4 // to raise a maximum that others raise too

static uint64_t offset_of(const struct recorder_ring *ring, uint32_t index)
{
	return ring->layout.stats_offset + index * sizeof(struct stall_wait_stat);
}

static struct stall_wait_stat *stat_at(const struct recorder_ring *ring, uint32_t index)
{
	return recorder_ring_at(ring, offset_of(ring, index));
}

uint32_t recorder_stat_index(const struct recorder_ring *ring, const struct stall_wait_stat *stat)
{
	return stat - stat_at(ring, 0);
}

bool recorder_stat_is_own(const struct recorder_ring *ring, const struct stall_wait_stat *stat)
{
	return recorder_stat_index(ring, stat) < ring->layout.stat_count;
}

static uint64_t tag_of(const struct stall_wait_stat *stat)
{
	return __atomic_load_n(&stat->tag, __ATOMIC_ACQUIRE);
}

struct stall_wait_stat *recorder_stat_find(struct recorder_ring *ring, uint64_t tag)
{
	uint32_t mask = ring->layout.stat_count - 1;

	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		uint32_t index = (tag + i) & mask;
		struct stall_wait_stat *stat = stat_at(ring, index);

		if (recorder_ring_has_already(ring, offset_of(ring, index), sizeof(*stat)) &&
		    tag_of(stat) == tag)
			return stat;
	}
	return NULL;
}

static struct stall_wait_stat *make(struct recorder_ring *ring, const struct stall_wait_key *key,
				    uint64_t tag)
{
	uint32_t mask = ring->layout.stat_count - 1;

	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		uint32_t index = (tag + i) & mask;
		struct stall_wait_stat *stat = stat_at(ring, index);

		if (!recorder_ring_has(ring, offset_of(ring, index), sizeof(*stat)))
			break;
		__u64 old = tag_of(stat);
		bool is_ours =
			!old && __atomic_compare_exchange_n(&stat->tag, &old, tag, false,
							    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		if (is_ours) {
			stat->key = *key;
			recorder_write_barrier();
			__atomic_store_n(&stat->used, 1, __ATOMIC_RELEASE);
		}
		if (is_ours || old == tag)
			return stat;
	}
	recorder_ring_lost(ring, STALL_LOST_KEYS_FULL);
	return stat_at(ring, mask + 1 + key->kind);
}

struct stall_wait_stat *recorder_stat_take(struct recorder_ring *ring,
					   const struct stall_wait_key *key, uint64_t tag)
{
	struct stall_wait_stat *stat = recorder_stat_find(ring, tag);

	return stat ? stat : make(ring, key, tag);
}

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t bucket = ns ? 63 - __builtin_clzll(ns) : 0;

	return bucket < STALL_WAIT_BUCKETS ? bucket : STALL_WAIT_BUCKETS - 1;
}

static void raise_maximum(__u64 *maximum, __u64 ns)
{
	__u64 seen = __atomic_load_n(maximum, __ATOMIC_RELAXED);

	for (int i = 0; i < MAX_TRIES && seen < ns; i++) {
		if (__atomic_compare_exchange_n(maximum, &seen, ns, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			break;
	}
}

void recorder_stat_count(struct stall_wait_stat *stat, uint64_t ns, uint64_t now)
{
	__atomic_fetch_add(&stat->bucket[bucket_of(ns)], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stat->total_ns, ns, __ATOMIC_RELAXED);
	__atomic_store_n(&stat->last_ns, now, __ATOMIC_RELAXED);
	raise_maximum(&stat->max_ns, ns);
}

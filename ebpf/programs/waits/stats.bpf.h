/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A stat for each key, with a histogram of its waits. Functions that every wait runs through are
 * inline. */
#ifndef STALL_WAITS_STATS_BPF_H
#define STALL_WAITS_STATS_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

#define MAX_TRIES 4 // to raise a maximum that other CPUs raise, too

// The index of the stat with this tag where it is not at the first place of the table; else 0.
VERIFIED_ONCE __u32 find_stat_slow(__u64 tag);
VERIFIED_ONCE __u32 create_stat(const struct stall_wait_key *key, __u64 tag);

static __always_inline struct stall_wait_stat *stat_at(__u32 index)
{
	return bpf_map_lookup_elem(&stats, &index);
}

// The index of the key's stat, or of that of its kind where there is no room.
static __always_inline __u32 get_or_create_stat(const struct stall_wait_key *key)
{
	__u64 tag = stall_wait_tag(key);
	__u32 index = tag & stat_mask;
	struct stall_wait_stat *stat = stat_at(index);

	if (stat && stat->tag == tag)
		return index;
	index = find_stat_slow(tag);
	stat = stat_at(index);
	if (stat && stat->tag == tag)
		return index;
	return create_stat(key, tag);
}

// A wait for this key is long: from now on its wakers are recorded.
static __always_inline void mark_stat(struct stall_wait_stat *stat)
{
	__sync_fetch_and_add(&stat->marked, 1);
	__sync_fetch_and_add(&marks, 1);
}

static __always_inline void unmark_stat(struct stall_wait_stat *stat)
{
	__sync_fetch_and_add(&stat->marked, -1);
	__sync_fetch_and_add(&marks, -1);
}

// floor(log2(ns)); BPF has no instruction for it.
static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 bucket = 0;

	if (ns >> 32)
		return ns >> (STALL_WAIT_BUCKETS - 1)
			       ? STALL_WAIT_BUCKETS - 1
			       : 32 + (ns >> 33 ? 1 : 0) + (ns >> 34 ? 1 : 0) + (ns >> 35 ? 1 : 0) +
					 (ns >> 36 ? 1 : 0) + (ns >> 37 ? 1 : 0) +
					 (ns >> 38 ? 1 : 0);
	__u32 low = ns;
	if (low >> 16) {
		bucket += 16;
		low >>= 16;
	}
	if (low >> 8) {
		bucket += 8;
		low >>= 8;
	}
	if (low >> 4) {
		bucket += 4;
		low >>= 4;
	}
	if (low >> 2) {
		bucket += 2;
		low >>= 2;
	}
	return bucket + (low >> 1);
}

static __always_inline void raise_maximum(__u64 *maximum, __u64 ns)
{
	for (int i = 0; i < MAX_TRIES; i++) {
		__u64 seen = *(volatile __u64 *)maximum;

		if (seen >= ns || __sync_val_compare_and_swap(maximum, seen, ns) == seen)
			break;
	}
}

static __always_inline void count_wait(struct stall_wait_stat *stat, __u64 ns, __u64 now)
{
	__u32 bucket = bucket_of(ns);

	if (bucket < STALL_WAIT_BUCKETS) // always true: for the verifier
		__sync_fetch_and_add(&stat->bucket[bucket], 1);
	__sync_fetch_and_add(&stat->total_ns, ns);
	stat->last_ns = now;
	if (stat->max_ns < ns)
		raise_maximum(&stat->max_ns, ns);
}

#endif

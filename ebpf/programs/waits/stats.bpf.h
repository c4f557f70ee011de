/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A stat for each key. Inline is what every wait runs through. */
#ifndef STALL_WAITS_STATS_BPF_H
#define STALL_WAITS_STATS_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

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

// A wait for this key has been long: from now on its wakers are recorded.
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

#endif

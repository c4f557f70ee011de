// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ebpf/programs/waits/stats.bpf.h"

VERIFIED_ONCE __u32 find_stat_slow(__u64 tag)
{
	for (__u32 i = 1; i < STALL_STAT_PLACES; i++) {
		__u32 index = (tag + i) & stat_mask;
		struct stall_wait_stat *stat = stat_at(index);

		if (stat && stat->tag == tag)
			return index;
	}
	return 0;
}

// Once for each place of the table.
static __always_inline void list_stat(struct stall_wait_stat *stat, __u32 index)
{
	if (__sync_val_compare_and_swap(&stat->listed, 0, 1))
		return;
	__u32 at = __sync_fetch_and_add(&made_count, 1);
	__u64 *made = bpf_map_lookup_elem(&made_stats, &at);

	if (made)
		*made = index + 1;
}

VERIFIED_ONCE __u32 create_stat(const struct stall_wait_key *key, __u64 tag)
{
	if (!key)
		return 0;
	for (__u32 i = 0; i < STALL_STAT_PLACES; i++) {
		__u32 index = (tag + i) & stat_mask;
		struct stall_wait_stat *stat = stat_at(index);

		if (!stat)
			break;
		__u64 old = stat->tag ? stat->tag : __sync_val_compare_and_swap(&stat->tag, 0, tag);
		if (!old) {
			stat->key = *key;
			barrier();
			stat->used = 1;
			list_stat(stat, index);
		}
		if (!old || old == tag)
			return index;
	}
	count_lost(STALL_LOST_KEYS_FULL);
	return stat_mask + 1 + key->kind;
}

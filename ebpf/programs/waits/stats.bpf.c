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
		}
		if (!old || old == tag)
			return index;
	}
	count_lost(STALL_LOST_KEYS_FULL);
	return stat_mask + 1 + key->kind;
}

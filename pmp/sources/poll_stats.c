// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_stats.h"

#include <stdlib.h>
#include <string.h>

#define KEYS 16384 // a power of two, as many as the wait programs have

struct stall_poll_stats {
	struct stall_wait_stat *stats; // KEYS, then one for each kind
};

struct stall_error *stall_poll_stats_create(struct stall_poll_stats **ret)
{
	struct stall_poll_stats *stats = calloc(1, sizeof(*stats));

	if (!stats)
		return &stall_enomem;
	stats->stats = calloc(KEYS + STALL_WAIT_KINDS, sizeof(*stats->stats));
	if (!stats->stats) {
		free(stats);
		return &stall_enomem;
	}
	*ret = stats;
	return NULL;
}

void stall_poll_stats_destroy(struct stall_poll_stats *stats)
{
	if (!stats)
		return;
	free(stats->stats);
	free(stats);
}

size_t stall_poll_stats_count(const struct stall_poll_stats *stats)
{
	return KEYS + STALL_WAIT_KINDS;
}

struct stall_wait_stat *stall_poll_stats_at(const struct stall_poll_stats *stats, size_t index)
{
	return &stats->stats[index];
}

struct stall_wait_stat *stall_poll_stats_find(const struct stall_poll_stats *stats,
					      const struct stall_wait_key *key)
{
	uint64_t tag = stall_wait_tag(key);

	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		struct stall_wait_stat *stat = &stats->stats[(tag + i) & (KEYS - 1)];
		if (stat->used && stat->tag == tag)
			return stat;
	}
	return NULL;
}

uint32_t stall_poll_stats_take(struct stall_poll_stats *stats, const struct stall_wait_key *key,
			       bool *ret_full)
{
	struct stall_wait_stat *found = stall_poll_stats_find(stats, key);
	uint64_t tag = stall_wait_tag(key);

	*ret_full = false;
	if (found)
		return found - stats->stats;
	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		uint32_t place = (tag + i) & (KEYS - 1);
		if (stats->stats[place].used)
			continue;
		stats->stats[place] = (struct stall_wait_stat){.tag = tag, .key = *key, .used = 1};
		return place;
	}
	*ret_full = true;
	struct stall_wait_stat *of_kind = &stats->stats[KEYS + key->kind];
	of_kind->used = 1;
	of_kind->key = (struct stall_wait_key){.kind = key->kind};
	return KEYS + key->kind;
}

void stall_poll_stats_free(struct stall_poll_stats *stats, size_t index)
{
	memset(&stats->stats[index], 0, sizeof(stats->stats[index]));
}

void stall_poll_stat_add(struct stall_wait_stat *stat, uint64_t length_ns, uint64_t bytes,
			 bool is_over, uint64_t now_ns)
{
	int bucket = length_ns ? 63 - __builtin_clzll(length_ns) : 0;

	stat->bucket[bucket < STALL_WAIT_BUCKETS ? bucket : STALL_WAIT_BUCKETS - 1]++;
	stat->total_ns += length_ns;
	stat->bytes += bytes;
	stat->over += is_over;
	stat->last_ns = now_ns;
	if (length_ns > stat->max_ns)
		stat->max_ns = length_ns;
}

// SPDX-License-Identifier: Apache-2.0
// Counts of polled waits, by lock and file, like the map of the wait programs.
#ifndef STALL_POLL_STATS_H
#define STALL_POLL_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ebpf/waits.h"

struct stall_poll_stats;

struct stall_error *stall_poll_stats_create(struct stall_poll_stats **ret);
void stall_poll_stats_destroy(struct stall_poll_stats *stats); // NULL is fine

size_t stall_poll_stats_count(const struct stall_poll_stats *stats);
struct stall_wait_stat *stall_poll_stats_at(const struct stall_poll_stats *stats, size_t index);

// Finds or makes that of a key. *ret_full: there is no room, and it is the one of the kind.
uint32_t stall_poll_stats_take(struct stall_poll_stats *stats, const struct stall_wait_key *key,
			       bool *ret_full);
// NULL: there is none.
struct stall_wait_stat *stall_poll_stats_find(const struct stall_poll_stats *stats,
					      const struct stall_wait_key *key);
void stall_poll_stats_free(struct stall_poll_stats *stats, size_t index);

// Counts a wait that has ended.
void stall_poll_stat_add(struct stall_wait_stat *stat, uint64_t length_ns, uint64_t bytes,
			 bool is_over, uint64_t now_ns);

#endif

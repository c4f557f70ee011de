// SPDX-License-Identifier: Apache-2.0
// The counts of a ring since we began to read it. Its stats count from the start of the server,
// have other readers, and may be retired by any of them.
#ifndef STALL_RING_COUNTS_H
#define STALL_RING_COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/hash_index.h"
#include "rings/ring_file.h"

// Last values of freed stats, one for each key. A server may free as many as it likes: beyond the
// limit they are counted under their kind alone.
#define STALL_MAX_RING_GHOSTS 16384
struct stall_ring_ghosts {
	struct stall_wait_stat *stats;
	size_t count, capacity;
	struct stall_hash_index by_key;
};
void stall_ring_ghosts_deinit(struct stall_ring_ghosts *ghosts);
// Removes one; another one takes its place.
struct stall_wait_stat stall_ring_ghosts_take(struct stall_ring_ghosts *ghosts, size_t ghost);

struct stall_ring_counts;

// `pid` takes the place of the process's own number in keys. Freed stats move to `ghosts`.
struct stall_error *stall_ring_counts_create(struct stall_ring *ring, pid_t pid,
					     struct stall_ring_ghosts *ghosts,
					     struct stall_ring_counts **ret);
// Moves all its counts to the ghosts.
void stall_ring_counts_destroy(struct stall_ring_counts *counts); // NULL is fine

// By index, including those of the kinds behind the table.
size_t stall_ring_counts_size(const struct stall_ring_counts *counts);
bool stall_ring_counts_read(struct stall_ring_counts *counts, size_t index,
			    struct stall_wait_stat *ret);
// The longest wait since the last call. Where there is another reader, or the ring cannot be
// written, it may be the lower end of its bucket in the histogram.
uint64_t stall_ring_counts_take_max(struct stall_ring_counts *counts, size_t index);
bool stall_ring_counts_retire(struct stall_ring_counts *counts, size_t index,
			      struct stall_wait_stat *ret);

void stall_ring_counts_set_role(struct stall_ring_counts *counts, const struct stall_wait_key *key,
				enum stall_wait_role role);
// The role that this or another reader has set for the condition of a slot; else
// STALL_ROLE_UNKNOWN.
enum stall_wait_role stall_ring_counts_role(struct stall_ring_counts *counts,
					    const struct stall_wait_slot *slot);
// Whether it is time to identify the word of a slot, which was not tried lately.
bool stall_ring_counts_ask(struct stall_ring_counts *counts, const struct stall_wait_slot *slot,
			   uint64_t now_ns);

// The server's record of a file. False: there is none.
bool stall_ring_counts_file(struct stall_ring_counts *counts, const struct stall_wait_key *key,
			    struct stall_wait_file *ret);

#endif

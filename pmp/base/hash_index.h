// SPDX-License-Identifier: Apache-2.0
// Finds the elements of a caller's array by a hash of their keys, however many there are. What a
// target chooses as keys cannot be made to collide: the hash differs in each process.
#ifndef STALL_HASH_INDEX_H
#define STALL_HASH_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stall_hash_index {
	struct stall_hash_place *places;
	size_t count, capacity; // capacity is a power of two
};
#define STALL_HASH_END UINT32_MAX

uint64_t stall_hash(const void *key, size_t size);

// False: no memory; nothing has changed.
bool stall_hash_index_add(struct stall_hash_index *index, uint64_t hash, uint32_t element);
// The elements with this hash, one after the other, then STALL_HASH_END; *at begins at 0. Their keys
// may still differ.
uint32_t stall_hash_index_next(const struct stall_hash_index *index, uint64_t hash, size_t *at);
void stall_hash_index_remove(struct stall_hash_index *index, uint64_t hash, uint32_t element);
// The element has moved in the array.
void stall_hash_index_move(struct stall_hash_index *index, uint64_t hash, uint32_t from,
			   uint32_t to);
// Empty, with room for as many as before.
void stall_hash_index_clear(struct stall_hash_index *index);
void stall_hash_index_deinit(struct stall_hash_index *index);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "growth/growth_sums.h"

#include <stdlib.h>

#include "base/array.h"

#define FIRST 1024
#define MAX_HASHES (1u << 20)

void stall_touchers_deinit(struct stall_touchers *touchers)
{
	free(touchers->list);
	free(touchers->slots);
	*touchers = (struct stall_touchers){};
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 32;
}

static uint64_t key_hash(const struct stall_toucher *toucher)
{
	uint64_t hash = mix(mix(toucher->hash, toucher->site), toucher->stack);

	return mix(hash,
		   (uint64_t)(uint32_t)toucher->tid << 32 | toucher->kind << 8 | toucher->flags);
}

static bool same_key(const struct stall_toucher *a, const struct stall_toucher *b)
{
	return a->hash == b->hash && a->site == b->site && a->stack == b->stack &&
	       a->tid == b->tid && a->kind == b->kind && a->flags == b->flags;
}

static void insert(struct stall_touchers *touchers, uint32_t index)
{
	size_t at = key_hash(&touchers->list[index]) & (touchers->slot_count - 1);

	while (touchers->slots[at])
		at = (at + 1) & (touchers->slot_count - 1);
	touchers->slots[at] = index + 1;
}

static struct stall_error *grow(struct stall_touchers *touchers)
{
	uint32_t capacity = touchers->capacity ? touchers->capacity * 2 : FIRST;

	if (!stall_array_resize(&touchers->list, capacity))
		return &stall_enomem;
	uint32_t *slots = calloc((size_t)capacity * 2, sizeof(*slots));
	if (!slots)
		return &stall_enomem;
	free(touchers->slots);
	touchers->slots = slots;
	touchers->slot_count = capacity * 2;
	touchers->capacity = capacity;
	for (uint32_t i = 0; i < touchers->count; i++)
		insert(touchers, i);
	return NULL;
}

struct stall_error *stall_touchers_get(struct stall_touchers *touchers,
				       const struct stall_toucher *wanted, uint32_t *ret)
{
	if (touchers->slot_count) {
		size_t at = key_hash(wanted) & (touchers->slot_count - 1);

		for (; touchers->slots[at]; at = (at + 1) & (touchers->slot_count - 1)) {
			*ret = touchers->slots[at] - 1;
			if (same_key(&touchers->list[*ret], wanted))
				return NULL;
		}
	}
	*ret = STALL_NO_TOUCHER;
	if (touchers->count == STALL_GROWTH_MAX_TOUCHERS)
		return NULL;
	if (touchers->count == touchers->capacity) {
		struct stall_error *err = grow(touchers);
		if (err)
			return err;
	}
	*ret = touchers->count++;
	touchers->list[*ret] = *wanted;
	insert(touchers, *ret);
	return NULL;
}

void stall_hashed_stacks_deinit(struct stall_hashed_stacks *stacks)
{
	free(stacks->slots);
	*stacks = (struct stall_hashed_stacks){};
}

static struct stall_hashed_stack *place(const struct stall_hashed_stacks *stacks, uint64_t hash)
{
	size_t at = mix(1, hash) & (stacks->capacity - 1);

	while (stacks->slots[at].hash && stacks->slots[at].hash != hash)
		at = (at + 1) & (stacks->capacity - 1);
	return &stacks->slots[at];
}

static struct stall_error *grow_hashes(struct stall_hashed_stacks *stacks)
{
	struct stall_hashed_stacks grown = {.capacity = stacks->capacity ? stacks->capacity * 2
									 : FIRST};

	grown.slots = calloc(grown.capacity, sizeof(*grown.slots));
	if (!grown.slots)
		return &stall_enomem;
	for (size_t i = 0; i < stacks->capacity; i++)
		if (stacks->slots[i].hash)
			*place(&grown, stacks->slots[i].hash) = stacks->slots[i];
	grown.count = stacks->count;
	free(stacks->slots);
	*stacks = grown;
	return NULL;
}

struct stall_error *stall_hashed_stacks_set(struct stall_hashed_stacks *stacks, uint64_t hash,
					    uint32_t stack)
{
	if (!hash || !stack)
		return NULL;
	if (stacks->count + 1 > stacks->capacity / 4 * 3) {
		struct stall_error *err = stacks->count >= MAX_HASHES ? NULL : grow_hashes(stacks);
		if (err || stacks->count >= MAX_HASHES)
			return err;
	}
	struct stall_hashed_stack *at = place(stacks, hash);
	stacks->count += !at->hash;
	*at = (struct stall_hashed_stack){hash, stack};
	return NULL;
}

uint32_t stall_hashed_stacks_find(const struct stall_hashed_stacks *stacks, uint64_t hash)
{
	return stacks->capacity && hash ? place(stacks, hash)->stack : 0;
}

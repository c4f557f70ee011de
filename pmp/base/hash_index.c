// SPDX-License-Identifier: Apache-2.0
#include "base/hash_index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#define FIRST 64

struct stall_hash_place {
	uint64_t hash;
	uint32_t element; // + 1; 0: free
};

static inline uint64_t rotate(uint64_t value, unsigned int bits)
{
	return value << bits | value >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotate(v[1], 13) ^ v[0];
	v[0] = rotate(v[0], 32);
	v[2] += v[3];
	v[3] = rotate(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotate(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotate(v[1], 17) ^ v[2];
	v[2] = rotate(v[2], 32);
}

// SipHash-1-3, keyed by the random bytes that the kernel gives to each program (getauxval(3)).
uint64_t stall_hash(const void *key, size_t size)
{
	const uint8_t *random = (const uint8_t *)getauxval(AT_RANDOM);
	const uint8_t *bytes = key;
	uint64_t k[2] = {}, last = (uint64_t)size << 56, word;

	if (random)
		memcpy(k, random, sizeof(k));
	uint64_t v[4] = {k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d,
			 k[0] ^ 0x6c7967656e657261, k[1] ^ 0x7465646279746573};
	for (; size >= sizeof(word); bytes += sizeof(word), size -= sizeof(word)) {
		memcpy(&word, bytes, sizeof(word));
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
	}
	for (size_t i = 0; i < size; i++)
		last |= (uint64_t)bytes[i] << 8 * i;
	v[3] ^= last;
	sip_round(v);
	v[0] ^= last;
	v[2] ^= 0xff;
	for (int i = 0; i < 3; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static void put(struct stall_hash_index *index, const struct stall_hash_place *place)
{
	size_t mask = index->capacity - 1, at = place->hash & mask;

	while (index->places[at].element)
		at = (at + 1) & mask;
	index->places[at] = *place;
	index->count++;
}

static bool grow(struct stall_hash_index *index)
{
	struct stall_hash_index grown = {.capacity = index->capacity ? index->capacity * 2 : FIRST};

	grown.places = calloc(grown.capacity, sizeof(*grown.places));
	if (!grown.places)
		return false;
	for (size_t i = 0; i < index->capacity; i++)
		if (index->places[i].element)
			put(&grown, &index->places[i]);
	free(index->places);
	*index = grown;
	return true;
}

bool stall_hash_index_add(struct stall_hash_index *index, uint64_t hash, uint32_t element)
{
	if (index->count >= index->capacity / 2 && !grow(index))
		return false;
	put(index, &(struct stall_hash_place){hash, element + 1});
	return true;
}

uint32_t stall_hash_index_next(const struct stall_hash_index *index, uint64_t hash, size_t *at)
{
	size_t mask = index->capacity - 1;

	while (*at < index->capacity) {
		const struct stall_hash_place *place = &index->places[(hash + (*at)++) & mask];

		if (!place->element)
			break;
		if (place->hash == hash)
			return place->element - 1;
	}
	return STALL_HASH_END;
}

static struct stall_hash_place *find(const struct stall_hash_index *index, uint64_t hash,
				     uint32_t element)
{
	size_t at = 0;
	uint32_t found;

	while ((found = stall_hash_index_next(index, hash, &at)) != STALL_HASH_END)
		if (found == element)
			return &index->places[(hash + at - 1) & (index->capacity - 1)];
	return NULL;
}

// What lies behind moves up, where it would not be found behind a free place.
void stall_hash_index_remove(struct stall_hash_index *index, uint64_t hash, uint32_t element)
{
	struct stall_hash_place *found = find(index, hash, element);
	size_t mask = index->capacity - 1;

	if (!found)
		return;
	size_t hole = (size_t)(found - index->places);
	for (size_t at = (hole + 1) & mask; index->places[at].element; at = (at + 1) & mask) {
		if (((at - index->places[at].hash) & mask) < ((at - hole) & mask))
			continue;
		index->places[hole] = index->places[at];
		hole = at;
	}
	index->places[hole] = (struct stall_hash_place){};
	index->count--;
}

void stall_hash_index_move(struct stall_hash_index *index, uint64_t hash, uint32_t from,
			   uint32_t to)
{
	struct stall_hash_place *found = find(index, hash, from);

	if (found)
		found->element = to + 1;
}

void stall_hash_index_clear(struct stall_hash_index *index)
{
	if (index->capacity)
		memset(index->places, 0, index->capacity * sizeof(*index->places));
	index->count = 0;
}

void stall_hash_index_deinit(struct stall_hash_index *index)
{
	free(index->places);
	*index = (struct stall_hash_index){};
}

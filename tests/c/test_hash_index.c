// SPDX-License-Identifier: Apache-2.0
// The index against a plain search.
#include "base/hash_index.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define ELEMENTS 3000
#define STEPS 20000

static uint64_t hashes[ELEMENTS];
static bool is_in[ELEMENTS];

static void check_all(const struct stall_hash_index *index)
{
	size_t count = 0;

	for (uint32_t i = 0; i < ELEMENTS; i++) {
		size_t at = 0, found = 0;
		uint32_t element;

		while ((element = stall_hash_index_next(index, hashes[i], &at)) != STALL_HASH_END) {
			CHECK(element < ELEMENTS && is_in[element] && hashes[element] == hashes[i]);
			found += element == i;
		}
		CHECK_INT(found, is_in[i]);
		count += is_in[i];
	}
	CHECK_INT(index->count, count);
}

// With few hashes all are behind each other, and around the end.
static void test_random(uint64_t different)
{
	struct stall_hash_index index = {};

	memset(is_in, 0, sizeof(is_in));
	for (uint32_t i = 0; i < ELEMENTS; i++)
		hashes[i] = different ? UINT64_MAX - (uint64_t)random() % different
				      : stall_hash(&i, sizeof(i));
	check_all(&index);
	for (int step = 0; step < STEPS; step++) {
		uint32_t i = (uint32_t)random() % ELEMENTS, j = (uint32_t)random() % ELEMENTS;

		if (!is_in[i]) {
			CHECK(stall_hash_index_add(&index, hashes[i], i));
			is_in[i] = true;
		} else if (step % 3 && !is_in[j]) {
			stall_hash_index_move(&index, hashes[i], i, j);
			hashes[j] = hashes[i];
			is_in[i] = false;
			is_in[j] = true;
		} else {
			stall_hash_index_remove(&index, hashes[i], i);
			is_in[i] = false;
		}
	}
	check_all(&index);
	for (uint32_t i = 0; i < ELEMENTS; i++) {
		if (is_in[i])
			stall_hash_index_remove(&index, hashes[i], i);
		is_in[i] = false;
	}
	check_all(&index);
	stall_hash_index_deinit(&index);
}

static void test_hash(void)
{
	uint8_t bytes[32] = {};

	CHECK(stall_hash(bytes, 0) != stall_hash(bytes, 1));
	CHECK(stall_hash(bytes, 8) != stall_hash(bytes, 9));
	for (size_t size = 1; size < sizeof(bytes); size++) {
		uint64_t before = stall_hash(bytes, size);

		bytes[size - 1] ^= 0x80;
		CHECK(stall_hash(bytes, size) != before);
		bytes[size - 1] ^= 0x80;
		bytes[size] ^= 1;
		CHECK(stall_hash(bytes, size) == before);
		bytes[size] ^= 1;
	}
}

int main(int argc, char **argv)
{
	srandom((unsigned int)check_seed(argc, argv));
	test_hash();
	test_random(0);
	test_random(40);
	return check_done();
}

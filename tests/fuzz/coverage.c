// SPDX-License-Identifier: Apache-2.0
// Counts how often each jump from one place to another was taken, as AFL does: in classes, so that
// one round more of a long loop is nothing new.
#include "coverage.h"

#include <stdint.h>
#include <string.h>

#define PLACES (1U << 16)

static uint8_t taken[PLACES], known[PLACES];
static size_t known_count;
static uintptr_t last;

extern const char __executable_start[];
void __sanitizer_cov_trace_pc(void);

// gcc calls it at the begin of each basic block (-fsanitize-coverage=trace-pc).
void __sanitizer_cov_trace_pc(void)
{
	// The program may be anywhere in memory.
	uintptr_t place = (uintptr_t)__builtin_return_address(0) - (uintptr_t)__executable_start;
	uint8_t *counter = &taken[((place * 0x9e3779b1U >> 8) ^ last) % PLACES];

	if (*counter < UINT8_MAX)
		++*counter;
	last = place * 0x9e3779b1U >> 9;
}

// 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, more.
static uint8_t class_of(uint8_t count)
{
	static const uint8_t first[] = {1, 2, 3, 4, 8, 16, 32, 128};
	uint8_t class = 0;

	for (size_t i = 0; i < sizeof(first); i++)
		if (count >= first[i])
			class = (uint8_t)(1U << i);
	return class;
}

bool coverage_grew(void)
{
	bool grew = false;

	for (size_t i = 0; i < PLACES; i++) {
		uint8_t class = taken[i] ? class_of(taken[i]) : 0;

		if (class & ~known[i]) {
			known_count += !known[i];
			known[i] |= class;
			grew = true;
		}
	}
	memset(taken, 0, sizeof(taken));
	last = 0;
	return grew;
}

size_t coverage_size(void)
{
	return known_count;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>

#define FIRST 16

void *stall_array_grown(void *array, size_t element, size_t count, size_t more, size_t *capacity)
{
	size_t wanted, larger;

	// A capacity may be kept in 32 bits.
	if (__builtin_add_overflow(count, more, &wanted) || wanted > UINT32_MAX)
		return NULL;
	if (array && wanted <= *capacity)
		return array;
	larger = *capacity > UINT32_MAX / 2 ? UINT32_MAX : *capacity * 2;
	if (larger < wanted)
		larger = wanted;
	if (larger < FIRST)
		larger = FIRST;
	void *grown = reallocarray(array, larger, element);
	if (grown)
		*capacity = larger;
	return grown;
}

void *stall_array_resized(void *array, size_t element, size_t count)
{
	// NULL means out of memory, also for no elements.
	return reallocarray(array, count ? count : 1, element);
}

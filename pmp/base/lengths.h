/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on lengths and offsets that a file, a process or a child says: none of it wraps. */
#ifndef STALL_LENGTHS_H
#define STALL_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

/* False, and *ret is of no use: the result does not fit into it. */
#define stall_add(a, b, ret) (!__builtin_add_overflow(a, b, ret))
#define stall_mul(a, b, ret) (!__builtin_mul_overflow(a, b, ret))

/* Whether `size` bytes from `offset` on are within the first `limit` ones. */
static inline bool stall_fits(uint64_t offset, uint64_t size, uint64_t limit)
{
	return offset <= limit && size <= limit - offset;
}

/* How many of the first `limit` bytes are from `offset` on. */
static inline uint64_t stall_rest(uint64_t offset, uint64_t limit)
{
	return offset < limit ? limit - offset : 0;
}

static inline uint64_t stall_at_most(uint64_t value, uint64_t limit)
{
	return value < limit ? value : limit;
}

#endif

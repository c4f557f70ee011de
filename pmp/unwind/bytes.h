// SPDX-License-Identifier: Apache-2.0
// Reads numbers from untrusted bytes. A read beyond their end gives 0, consumes what is left and sets
// `torn`.
#ifndef STALL_BYTES_H
#define STALL_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stall_bytes {
	const uint8_t *at, *end;
	bool torn;
};

static inline struct stall_bytes stall_bytes_of(const uint8_t *data, size_t size)
{
	return (struct stall_bytes){.at = data, .end = data + size};
}

static inline size_t stall_bytes_left(const struct stall_bytes *bytes)
{
	return (size_t)(bytes->end - bytes->at);
}

// NULL: there are fewer.
static inline const uint8_t *stall_bytes_take(struct stall_bytes *bytes, uint64_t size)
{
	const uint8_t *taken = bytes->at;

	if (size > stall_bytes_left(bytes)) {
		bytes->torn = true;
		bytes->at = bytes->end;
		return NULL;
	}
	bytes->at += size;
	return taken;
}

// Little-endian, of at most eight bytes.
static inline uint64_t stall_bytes_number(struct stall_bytes *bytes, unsigned int size)
{
	const uint8_t *data = stall_bytes_take(bytes, size);
	uint64_t value = 0;

	for (unsigned int i = 0; data && i < size; i++)
		value |= (uint64_t)data[i] << (8 * i);
	return value;
}

static inline uint64_t stall_bytes_signed(struct stall_bytes *bytes, unsigned int size)
{
	unsigned int unused = 64 - 8 * size;

	return (uint64_t)((int64_t)(stall_bytes_number(bytes, size) << unused) >> unused);
}

// LEB128 (DWARF 5, 7.6), at most the ten bytes that 64 bits take.
static inline uint64_t stall_bytes_leb128(struct stall_bytes *bytes, bool is_signed)
{
	uint64_t value = 0;

	for (unsigned int shift = 0; shift < 64; shift += 7) {
		uint8_t byte = (uint8_t)stall_bytes_number(bytes, 1);

		value |= (uint64_t)(byte & 0x7f) << shift;
		if (byte & 0x80)
			continue;
		if (is_signed && (byte & 0x40) && shift + 7 < 64)
			value |= UINT64_MAX << (shift + 7);
		return value;
	}
	bytes->torn = true;
	bytes->at = bytes->end;
	return 0;
}

static inline uint64_t stall_bytes_uleb(struct stall_bytes *bytes)
{
	return stall_bytes_leb128(bytes, false);
}

static inline uint64_t stall_bytes_sleb(struct stall_bytes *bytes)
{
	return stall_bytes_leb128(bytes, true);
}

#endif

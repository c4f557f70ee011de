// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), to distinguish builds of a program that have no build-id.
#ifndef STALL_SHA256_H
#define STALL_SHA256_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STALL_SHA256_SIZE 32
#define STALL_SHA256_TEXT (2 * STALL_SHA256_SIZE + 1)

struct stall_sha256 {
	uint32_t state[8];
	uint64_t bytes;
	uint8_t block[64];
};

void stall_sha256_init(struct stall_sha256 *hash);
void stall_sha256_add(struct stall_sha256 *hash, const void *data, size_t size);
// As lower-case hexadecimal digits.
void stall_sha256_finish(struct stall_sha256 *hash, char ret[STALL_SHA256_TEXT]);

// Of a whole file, from its beginning on; at most `max` bytes (STALL_ERROR_LIMIT above it).
struct stall_error *stall_sha256_file(int fd, uint64_t max, char ret[STALL_SHA256_TEXT]);

#endif

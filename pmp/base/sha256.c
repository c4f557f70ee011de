// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

#define PIECE (256 * 1024)

// The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
static const uint32_t constants[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static uint32_t rotate(uint32_t value, int bits)
{
	return value >> bits | value << (32 - bits);
}

// One round, with the eight words under the names that they have in it: the next round has them one
// further, and nothing is moved.
#define ROUND(a, b, c, d, e, f, g, h, i)                                                           \
	do {                                                                                       \
		uint32_t t = (h) + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +                \
			     (((e) & (f)) ^ (~(e) & (g))) + constants[i] + w[i];                   \
		(d) += t;                                                                          \
		(h) = t + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +                         \
		      (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)));                                   \
	} while (0)

static void add_block(struct stall_sha256 *hash, const uint8_t *block)
{
	uint32_t w[64], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
		       (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];

		w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
		       (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
	}
	memcpy(s, hash->state, sizeof(s));
	for (int i = 0; i < 64; i += 8) {
		ROUND(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], i);
		ROUND(s[7], s[0], s[1], s[2], s[3], s[4], s[5], s[6], i + 1);
		ROUND(s[6], s[7], s[0], s[1], s[2], s[3], s[4], s[5], i + 2);
		ROUND(s[5], s[6], s[7], s[0], s[1], s[2], s[3], s[4], i + 3);
		ROUND(s[4], s[5], s[6], s[7], s[0], s[1], s[2], s[3], i + 4);
		ROUND(s[3], s[4], s[5], s[6], s[7], s[0], s[1], s[2], i + 5);
		ROUND(s[2], s[3], s[4], s[5], s[6], s[7], s[0], s[1], i + 6);
		ROUND(s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[0], i + 7);
	}
	for (int i = 0; i < 8; i++)
		hash->state[i] += s[i];
}

void stall_sha256_init(struct stall_sha256 *hash)
{
	*hash = (struct stall_sha256){
		.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
			  0x1f83d9ab, 0x5be0cd19},
	};
}

void stall_sha256_add(struct stall_sha256 *hash, const void *data, size_t size)
{
	const uint8_t *at = data;
	size_t used = hash->bytes % sizeof(hash->block);

	hash->bytes += size;
	while (size) {
		size_t part = sizeof(hash->block) - used;

		if (!used && size >= sizeof(hash->block)) {
			add_block(hash, at);
			at += sizeof(hash->block);
			size -= sizeof(hash->block);
			continue;
		}
		if (part > size)
			part = size;
		memcpy(hash->block + used, at, part);
		at += part;
		size -= part;
		used = (used + part) % sizeof(hash->block);
		if (!used)
			add_block(hash, hash->block);
	}
}

void stall_sha256_finish(struct stall_sha256 *hash, char ret[STALL_SHA256_TEXT])
{
	uint64_t bits = hash->bytes * 8;
	uint8_t length[8], pad = 0x80;

	stall_sha256_add(hash, &pad, 1);
	for (pad = 0; hash->bytes % sizeof(hash->block) != 56;)
		stall_sha256_add(hash, &pad, 1);
	for (size_t i = 0; i < 8; i++)
		length[i] = (uint8_t)(bits >> (56 - 8 * i));
	stall_sha256_add(hash, length, sizeof(length));
	for (size_t i = 0; i < 8; i++)
		snprintf(ret + 8 * i, STALL_SHA256_TEXT - 8 * i, "%08x", hash->state[i]);
}

struct stall_error *stall_sha256_file(int fd, uint64_t max, char ret[STALL_SHA256_TEXT])
{
	_cleanup_free_ uint8_t *piece = malloc(PIECE);
	struct stall_sha256 hash;
	uint64_t at = 0;

	if (!piece)
		return &stall_enomem;
	stall_sha256_init(&hash);
	for (;;) {
		ssize_t n = pread(fd, piece, PIECE, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return stall_error_os(errno, "cannot read the program");
		if (!n)
			break;
		at += (size_t)n;
		if (at > max)
			return stall_error_create(STALL_ERROR_LIMIT,
						  "the program is larger than %llu bytes",
						  (unsigned long long)max);
		stall_sha256_add(&hash, piece, (size_t)n);
	}
	stall_sha256_finish(&hash, ret);
	return NULL;
}

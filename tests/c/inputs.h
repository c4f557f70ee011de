// SPDX-License-Identifier: Apache-2.0
// What tests make of inputs: random numbers, and files of bytes.
#ifndef STALL_INPUTS_H
#define STALL_INPUTS_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t random_state; // not 0

// xorshift64*
static inline uint64_t random_word(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return random_state * UINT64_C(0x2545f4914f6cdd1d);
}

// A file in memory; its descriptor.
static inline int file_of(const void *bytes, size_t size)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
		abort();
	return fd;
}

#endif

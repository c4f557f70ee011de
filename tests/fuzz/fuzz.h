// SPDX-License-Identifier: Apache-2.0
// What every fuzzer of C has: driver.c calls it with an input.
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void must(bool condition)
{
	if (!condition)
		abort();
}

#endif

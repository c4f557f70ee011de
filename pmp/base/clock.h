// SPDX-License-Identifier: Apache-2.0
#ifndef STALL_CLOCK_H
#define STALL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t stall_clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

#endif

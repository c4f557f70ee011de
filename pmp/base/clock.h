// SPDX-License-Identifier: Apache-2.0
#ifndef STALL_CLOCK_H
#define STALL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t stall_clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif

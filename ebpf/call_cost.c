// SPDX-License-Identifier: Apache-2.0
#include "ebpf/call_cost.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

#define BATCHES 16
#define CALLS 500 // of a batch: short enough that some batches are not interrupted

uint64_t stall_call_cost_ps(void)
{
	uint64_t fastest_ns = UINT64_MAX;

	for (int batch = 0; batch < BATCHES; batch++) {
		uint64_t start_ns = stall_clock_ns(CLOCK_MONOTONIC);

		for (int i = 0; i < CALLS; i++)
			syscall(SYS_getppid);
		uint64_t ns = stall_clock_ns(CLOCK_MONOTONIC) - start_ns;
		if (ns < fastest_ns)
			fastest_ns = ns;
	}
	return fastest_ns * 1000 / CALLS;
}

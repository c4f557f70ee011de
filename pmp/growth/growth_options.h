// SPDX-License-Identifier: Apache-2.0
// How memory is watched.
#ifndef STALL_GROWTH_OPTIONS_H
#define STALL_GROWTH_OPTIONS_H

#include <stdint.h>
#include <sys/types.h>

#include "unwind/worker.h"

struct stall_growth_options {
	pid_t pid;
	uint64_t duration_ns;
	uint32_t max_stack;	    // bytes of a copy
	uint32_t stacks_per_second; // that are copied
	uint32_t faults_per_second; // of a CPU: above it a record stands for several
	struct stall_worker_options worker;
};

#endif

// SPDX-License-Identifier: Apache-2.0
// Loads growth.bpf.c: page faults of one process.
#ifndef STALL_GROWTH_LOADER_H
#define STALL_GROWTH_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/growth.h"

struct stall_bpf_growth;

struct stall_bpf_growth_options {
	pid_t pid;
	uint32_t max_stack;	    // bytes of a copy
	uint32_t stacks_per_second; // that are copied
	uint32_t faults_per_second; // of a CPU, that have a record of their own
};

// The code of the program and of its libraries: what may be a return address.
struct stall_bpf_code {
	uint64_t low[2], high[2];
};

// What the kernel refused, and what is not seen without it. NULL: nothing.
struct stall_bpf_growth_programs {
	bool kernel_faults;    // pages that system calls touch
	bool populate;	       // pages that the kernel makes without a fault
	const char *no_kernel; // why not; static
	const char *no_populate;
};

struct stall_bpf_growth_counts {
	uint64_t faults[STALL_GROWTH_KINDS];
	uint64_t lost[STALL_GROWTH_LOST_CAUSES];
};

struct stall_bpf_growth_handler {
	void *arg;
	// A fault without a stack of its own.
	void (*fault)(void *arg, const struct stall_growth_fault *fault);
	void (*stack)(void *arg, const struct stall_growth_stack *record, const uint8_t *stack);
};

// Loads and attaches; nothing is recorded until it is started. The handler is borrowed.
struct stall_error *stall_bpf_growth_create(const struct stall_bpf_growth_options *options,
					    const struct stall_bpf_growth_handler *handler,
					    struct stall_bpf_growth **ret);
void stall_bpf_growth_destroy(struct stall_bpf_growth *growth); // NULL is fine
void stall_bpf_growth_set_code(struct stall_bpf_growth *growth, const struct stall_bpf_code *code);
void stall_bpf_growth_start(struct stall_bpf_growth *growth);
void stall_bpf_growth_stop(struct stall_bpf_growth *growth);
// Passes what there is to the handler.
struct stall_error *stall_bpf_growth_read(struct stall_bpf_growth *growth);
struct stall_bpf_growth_counts stall_bpf_growth_counts(const struct stall_bpf_growth *growth);
struct stall_bpf_growth_programs stall_bpf_growth_programs(const struct stall_bpf_growth *growth);

static inline void stall_bpf_growth_destroyp(struct stall_bpf_growth **growth)
{
	stall_bpf_growth_destroy(*growth);
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Kernels known to crash or lock up under what our BPF programs do. Features are probed, never
// guessed from versions; a crash cannot be probed.
#ifndef STALL_DENYLIST_H
#define STALL_DENYLIST_H

#include <stdbool.h>

#include "base/error.h"

// Actions of programs that crash some kernel.
enum stall_deny_use {
	STALL_DENY_TASK_STACK = 1 << 0, // bpf_get_task_stack in a task iterator
};

#define STALL_DENY_MAX_FIXED 6

struct stall_kernel_version {
	int major, minor, patch;
};

struct stall_denied_kernel {
	enum stall_deny_use use;
	// The first version that has the fault.
	struct stall_kernel_version first;
	// Fixed versions of stable series, ascending; the last also ends the range.
	struct stall_kernel_version fixed[STALL_DENY_MAX_FIXED];
	// What happens.
	const char *what;
	const char *reference;
};

extern const struct stall_denied_kernel stall_denylist[];
extern const unsigned int stall_denylist_count;

// The entry that forbids `uses` (or-ed) on a kernel of this release ("6.1.0-18-amd64"), or NULL. A
// release that cannot be read is not denied.
const struct stall_denied_kernel *stall_denylist_find(const char *release, unsigned int uses);

struct stall_error *stall_denylist_error(const char *release,
					 const struct stall_denied_kernel *entry);

// For the running kernel; NULL where `force` is set.
struct stall_error *stall_denylist_check(unsigned int uses, bool force);

#endif

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

// What a kernel says of itself.
struct stall_kernel_names {
	const char *release;   // uname -r: "5.10.0-32-amd64"
	const char *version;   // uname -v: "#1 SMP Debian 5.10.223-1 (2024-08-10)"
	const char *signature; // of Ubuntu's /proc/version_signature; "" elsewhere
};

// The entry that forbids `uses` (or-ed) on such a kernel, or NULL. A version that cannot be read is
// not denied.
const struct stall_denied_kernel *stall_denylist_find(const struct stall_kernel_names *names,
						      unsigned int uses);

struct stall_error *stall_denylist_error(const char *release,
					 const struct stall_denied_kernel *entry);

// For the running kernel; NULL where `force` is set.
struct stall_error *stall_denylist_check(unsigned int uses, bool force);

#endif

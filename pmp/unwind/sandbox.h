// SPDX-License-Identifier: Apache-2.0
// Drops privileges permanently before hostile input is parsed.
#ifndef STALL_SANDBOX_H
#define STALL_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct stall_sandbox_options {
	bool keep_uid; // root stays uid 0 (its own files stay readable), without capabilities
	bool die_with_parent; // SIGKILL when the parent ends
	size_t memory_limit;  // RLIMIT_AS, 0 none
};

// Drops every capability, becomes nobody when root, forbids new privileges, core dumps and file
// writes by path: a seccomp filter then allows only memory, reading, opening for reading, and
// writing to what is already open. Cannot be undone. New processes cannot be made afterwards.
struct stall_error *stall_sandbox_enter(const struct stall_sandbox_options *options);

#endif

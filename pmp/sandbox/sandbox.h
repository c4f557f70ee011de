// SPDX-License-Identifier: Apache-2.0
// Takes from a process, permanently, all that it does not need to parse hostile input.
#ifndef STALL_SANDBOX_H
#define STALL_SANDBOX_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

enum stall_sandbox_layer {
	STALL_SANDBOX_UID,	    // root becomes a user that no other process is
	STALL_SANDBOX_CAPABILITIES, // none, and none by executing a program
	STALL_SANDBOX_LANDLOCK,	    // no file by its path, no network, no signal to others
	STALL_SANDBOX_SECCOMP,	    // memory, time, and what is open already
	STALL_SANDBOX_LAYERS,
};

const char *stall_sandbox_layer_name(enum stall_sandbox_layer layer);

struct stall_sandbox_options {
	pid_t parent;		  // SIGKILL when it ends
	size_t memory_limit;	  // RLIMIT_AS; 0: none
	unsigned int cpu_seconds; // RLIMIT_CPU; 0: none
};

#define STALL_SANDBOX_FILE (256 << 10) // bytes of a memfd, for a vdso

// Cannot be undone. New descriptors come only from the parent, new processes cannot be made.
// *ret_missing: a bit for each layer that this kernel or this user's rights do not give.
struct stall_error *stall_sandbox_enter(const struct stall_sandbox_options *options,
					unsigned int *ret_missing);

// Enters one in a child, and says what is missing; without a child: all.
unsigned int stall_sandbox_try(void);

// NULL where nothing is missing; else which layers are, and behind "; " how to have them.
struct stall_error *stall_sandbox_check(unsigned int missing);

#endif

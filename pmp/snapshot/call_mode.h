// SPDX-License-Identifier: Apache-2.0
// Whether a thread runs 64-bit code and is in a 64-bit system call. /proc and ptrace(2) show the
// numbers of 32-bit calls as if they were 64-bit ones: only the code shows which.
#ifndef STALL_CALL_MODE_H
#define STALL_CALL_MODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proc/target.h"

#define STALL_CALL_PLACES 64 // a power of two

// What is known of places in code: the threads of a server wait at a few of them.
struct stall_call_places {
	struct stall_call_place {
		uint64_t pc, start_time;
		pid_t pid;
		bool known, is_64bit;
	} places[STALL_CALL_PLACES];
};

// A thread in 32-bit mode has both below 4 GiB (arch/x86/entry/entry_64_compat.S).
static inline bool stall_code_is_64bit(uint64_t pc, uint64_t sp)
{
	return (pc | sp) >> 32;
}

// Of 64-bit code that waits in a call before the PC: `int $0x80` makes a 32-bit one there, too.
bool stall_call_is_64bit(struct stall_call_places *places, const struct stall_target *target,
			 uint64_t pc);

#endif

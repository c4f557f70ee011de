// SPDX-License-Identifier: Apache-2.0
// What every source of waits hands on to who reads it: the wait programs, the ring of the in-process
// library, and the reader of /proc.
#ifndef STALL_WAIT_HANDLER_H
#define STALL_WAIT_HANDLER_H

#include <stdint.h>

#include "ebpf/waits.h"

struct stall_wait_handler {
	void *arg;
	// `stack` has record->stack_size bytes. A record that is not whole never gets here.
	void (*wait)(void *arg, const struct stall_wait_record *record, const uint8_t *stack);
	void (*file)(void *arg, const struct stall_wait_file *file);
	// All waits in flight that were there have been handed on: what they say is fresh now, and
	// what comes next may take long. May be NULL.
	void (*alarms)(void *arg);
};

// What is attached, for people and for docs/wait-programs.md. `why_not` is NULL where it works.
struct stall_wait_program {
	const char *name;	  // "sys_enter"
	const char *attach_point; // "raw tracepoint sys_enter"
	const char *why_not;	  // one sentence: what is lost, and what is done instead
};

#endif

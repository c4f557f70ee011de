// SPDX-License-Identifier: Apache-2.0
// The interface through which every wait source delivers waits: the wait programs, the ring of the
// in-process library, and the reader of /proc.
#ifndef STALL_WAIT_HANDLER_H
#define STALL_WAIT_HANDLER_H

#include <stdint.h>

#include "ebpf/waits.h"

struct stall_wait_handler {
	void *arg;
	// `stack` has record->stack_size bytes. Incomplete records never get here.
	void (*wait)(void *arg, const struct stall_wait_record *record, const uint8_t *stack);
	void (*file)(void *arg, const struct stall_wait_file *file);
	// Called once all waits in flight have been delivered: they are fresh now, and what follows
	// may take long. May be NULL.
	void (*alarms)(void *arg);
};

// What is attached, for users and for docs/wait-programs.md. `why_not` is NULL where it works.
struct stall_wait_program {
	const char *name;	  // "sys_enter"
	const char *attach_point; // "raw tracepoint sys_enter"
	const char *why_not;	  // one sentence: what is lost, and what is done instead
};

#endif

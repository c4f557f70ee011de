// SPDX-License-Identifier: Apache-2.0
// Options of the wait programs.
#ifndef STALL_WAITS_OPTIONS_H
#define STALL_WAITS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"

struct stall_bpf_waits_options {
	uint32_t kinds;				 // bit of each enum stall_wait_kind to watch
	uint64_t threshold_ns[STALL_WAIT_KINDS]; // can be changed later
	uint32_t max_threads;			 // slots, default 16384
	uint32_t max_keys;			 // stats, default 16384
	uint32_t ring_bytes;			 // a power of two, default 16 MiB
	uint32_t stack_bytes;	     // copied of a stack, at most 32 KiB, which is the default
	uint32_t records_per_second; // of END and WAKER, 17 us each; default 1000
	bool no_timer;		     // behave as on a kernel without BPF timers
	bool at_rest;		     // attach nothing until stall_bpf_waits_attach()
	bool no_attach;		     // behave as where the kernel refuses to attach
	bool storage;		     // count what is written to files, and syncs: storage_loader.h
	bool force; // also on kernels that are known to crash; for these programs none is known
};
#endif

// SPDX-License-Identifier: Apache-2.0
// The parts of stall_bpf_waits_create().
#ifndef STALL_WAITS_ATTACH_H
#define STALL_WAITS_ATTACH_H

#include "base/error.h"

struct stall_bpf_waits;

struct stall_error *stall_bpf_waits_load(struct stall_bpf_waits *waits);
// Starts what runs without being attached, and notes all programs.
struct stall_error *stall_waits_start(struct stall_bpf_waits *waits);

// For stall_bpf_waits_programs(); the strings stay the caller's.
void stall_bpf_waits_note_probe(struct stall_bpf_waits *waits, const char *name,
				const char *attach_point, const char *why_not);

#endif

// SPDX-License-Identifier: Apache-2.0
// Loads, attaches and detaches the wait programs.
#ifndef STALL_WAITS_ATTACH_H
#define STALL_WAITS_ATTACH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct stall_bpf_waits;

// Two steps of stall_bpf_waits_create(). The first loads.
struct stall_error *stall_bpf_waits_load(struct stall_bpf_waits *waits);
// The second starts what runs without being attached, and notes all programs.
struct stall_error *stall_waits_start(struct stall_bpf_waits *waits);

// Attaches the programs, or takes them away: what is known of threads and waits stays.
struct stall_error *stall_bpf_waits_attach(struct stall_bpf_waits *waits);
void stall_bpf_waits_detach(struct stall_bpf_waits *waits);
bool stall_bpf_waits_is_attached(const struct stall_bpf_waits *waits);
// What they add to each system call of the host, as it was measured when they were first attached.
// Negative while they are not.
int64_t stall_bpf_waits_call_added_ns(const struct stall_bpf_waits *waits);

// For stall_bpf_waits_programs(); the strings stay the caller's.
void stall_bpf_waits_note_probe(struct stall_bpf_waits *waits, const char *name,
				const char *attach_point, const char *why_not);

#endif

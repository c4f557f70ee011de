// SPDX-License-Identifier: Apache-2.0
// The two halves of stall_bpf_waits_create().
#ifndef STALL_WAITS_ATTACH_H
#define STALL_WAITS_ATTACH_H

#include "base/error.h"

struct stall_bpf_waits;

struct stall_error *stall_bpf_waits_load(struct stall_bpf_waits *waits);
struct stall_error *stall_bpf_waits_attach(struct stall_bpf_waits *waits);

// For stall_bpf_waits_programs(); the strings stay the caller's.
void stall_bpf_waits_note_probe(struct stall_bpf_waits *waits, const char *name,
				const char *attach_point, const char *why_not);

#endif

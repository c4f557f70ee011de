// SPDX-License-Identifier: Apache-2.0
// Loads the wait programs and attaches what this kernel supports. waits_read.h reads their data,
// uprobes_loader.h sets uprobes. Nothing here unwinds or names anything.
#ifndef STALL_WAITS_LOADER_H
#define STALL_WAITS_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/wait_handler.h"
#include "ebpf/waits.h"
#include "ebpf/waits_options.h"

void stall_bpf_waits_options_init(struct stall_bpf_waits_options *options);

struct stall_bpf_waits;

struct stall_error *stall_bpf_waits_create(const struct stall_bpf_waits_options *options,
					   struct stall_bpf_waits **ret);
void stall_bpf_waits_destroy(struct stall_bpf_waits *waits); // NULL is fine

const struct stall_wait_program *stall_bpf_waits_programs(const struct stall_bpf_waits *waits,
							  size_t *ret_count);
bool stall_bpf_waits_has_timer(const struct stall_bpf_waits *waits);

// Begins to watch a process (a pid in our pid namespace). Adopts waits in flight: they then start
// at the moment of this call.
struct stall_error *stall_bpf_waits_add(struct stall_bpf_waits *waits, pid_t pid);
void stall_bpf_waits_remove(struct stall_bpf_waits *waits, pid_t pid);

void stall_bpf_waits_set_threshold(struct stall_bpf_waits *waits, enum stall_wait_kind kind,
				   uint64_t ns);

#endif

// SPDX-License-Identifier: Apache-2.0
// Asks the running kernel for the name of an address, by a BPF program.
#ifndef STALL_KERNEL_NAMES_BPF_H
#define STALL_KERNEL_NAMES_BPF_H

#include <stdint.h>

#include "error.h"

struct stall_kernel_names_bpf;

struct stall_error *stall_kernel_names_bpf_create(struct stall_kernel_names_bpf **ret);
void stall_kernel_names_bpf_destroy(struct stall_kernel_names_bpf *names);

// "function+0x12/0x34 [module]", or a bare number where the address is nobody's. The text is
// overwritten by the next call.
struct stall_error *stall_kernel_names_bpf_find(struct stall_kernel_names_bpf *names,
						uint64_t address, const char **ret);

#endif

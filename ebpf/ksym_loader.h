// SPDX-License-Identifier: Apache-2.0
// Asks the running kernel for the name of an address, by a BPF program.
#ifndef STALL_KSYM_LOADER_H
#define STALL_KSYM_LOADER_H

#include <stdint.h>

#include "base/error.h"

struct stall_ksym_loader;

struct stall_error *stall_ksym_loader_create(struct stall_ksym_loader **ret);
void stall_ksym_loader_destroy(struct stall_ksym_loader *names);

// "function+0x12/0x34 [module]", or a bare number where the address has no name. The text is
// overwritten by the next call.
struct stall_error *stall_ksym_loader_find(struct stall_ksym_loader *names, uint64_t address,
					   const char **ret);

#endif

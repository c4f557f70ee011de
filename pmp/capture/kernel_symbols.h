// SPDX-License-Identifier: Apache-2.0
// Names of kernel functions, for the few distinct addresses that a capture has.
#ifndef STALL_KERNEL_SYMBOLS_H
#define STALL_KERNEL_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct stall_kernel_symbol {
	uint64_t address; // in: what to name
	const char *name; // out: NULL where it has none; valid as long as the table
	uint64_t offset;  // out: into the function
};

struct stall_kernel_symbols;

struct stall_error *stall_kernel_symbols_create(struct stall_kernel_symbols **ret);
void stall_kernel_symbols_destroy(struct stall_kernel_symbols *symbols);

// Names are kept: a later call for the same address costs nothing. Fails where all names are hidden
// from this user.
struct stall_error *stall_kernel_symbols_find(struct stall_kernel_symbols *symbols,
					      struct stall_kernel_symbol *queries, size_t count);

#endif

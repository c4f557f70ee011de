// SPDX-License-Identifier: Apache-2.0
// DWARF expressions as unwind information uses them.
#ifndef STALL_EXPRESSION_H
#define STALL_EXPRESSION_H

#include <elfutils/libdw.h>

#include "base/error.h"
#include "unwind/unwind.h"

// Copies what libdw decoded. Operations that cannot occur in unwind information are refused.
struct stall_error *stall_expression_create(const Dwarf_Op *ops, size_t count,
					    struct stall_expression **ret);

// The value that the expression leaves on its stack. `cfa` may be NULL where it is not known yet.
enum stall_step stall_expression_evaluate(const struct stall_expression *expression,
					  const struct stall_regs *regs, const uint64_t *cfa,
					  const struct stall_stack_memory *memory, uint64_t *ret);

#endif

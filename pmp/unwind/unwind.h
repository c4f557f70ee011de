// SPDX-License-Identifier: Apache-2.0
// One step up a stack: registers of a frame and its unwind row in, registers of its caller out.
#ifndef STALL_UNWIND_H
#define STALL_UNWIND_H

#include "snapshot/snapshot.h"
#include "unwind/cfi.h"
#include "unwind/expression.h"

enum stall_step stall_unwind_step(const struct stall_row *row, const struct stall_regs *regs,
				  const struct stall_stack_memory *memory, struct stall_regs *ret);

#endif

// SPDX-License-Identifier: Apache-2.0
// Yama (kernel.yama.ptrace_scope), which limits who may read another process.
#ifndef STALL_YAMA_H
#define STALL_YAMA_H

#include "base/error.h"

// NULL, or that nobody may read another process, not even root, and what can be done.
struct stall_error *stall_yama_refuses_all(void);

// The same, and that this process may not.
struct stall_error *stall_yama_check(void);

#endif

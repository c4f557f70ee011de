// SPDX-License-Identifier: Apache-2.0
// What the kernel's policy forbids: Yama (kernel.yama.ptrace_scope) limits who may read another process,
// lockdown keeps even root from reading the kernel's memory.
#ifndef STALL_KERNEL_POLICY_H
#define STALL_KERNEL_POLICY_H

#include "base/error.h"

// NULL, or that nobody may read another process, not even root, and what can be done.
struct stall_error *stall_yama_refuses_all(void);

// The same, and that this process may not.
struct stall_error *stall_yama_check(void);

// NULL, or why BPF programs cannot read the kernel here and what can be done.
struct stall_error *stall_lockdown_check(void);

#endif

// SPDX-License-Identifier: Apache-2.0
// Kernel lockdown, which keeps even root from reading the kernel's memory.
#ifndef STALL_LOCKDOWN_H
#define STALL_LOCKDOWN_H

#include "base/error.h"

// NULL, or why BPF programs cannot read the kernel here and what can be done.
struct stall_error *stall_lockdown_check(void);

#endif

// SPDX-License-Identifier: Apache-2.0
// Names of system calls, as the build machine knows them.
#ifndef STALL_SYSCALL_NAMES_H
#define STALL_SYSCALL_NAMES_H

#include <stdint.h>

// NULL where this build knows none.
const char *stall_syscall_name(int64_t number);

#endif

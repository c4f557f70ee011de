// SPDX-License-Identifier: Apache-2.0
// Names of system calls, from the header of the machine that built this.
#ifndef STALL_SYSCALLS_H
#define STALL_SYSCALLS_H

#include <stdint.h>

// NULL where this build knows none.
const char *stall_syscall_name(int64_t number);

#endif

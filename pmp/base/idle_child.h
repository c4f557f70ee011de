// SPDX-License-Identifier: Apache-2.0
// A child that does nothing, to try on it what is to be done to a target.
#ifndef STALL_IDLE_CHILD_H
#define STALL_IDLE_CHILD_H

#include <sys/types.h>

// It may be looked at by its own user, as a server may, even where this process forbids that for
// itself. It ends with its parent. -1 and errno on failure.
pid_t stall_idle_child_create(void);

// Keeps errno.
void stall_idle_child_destroy(pid_t child);

#endif

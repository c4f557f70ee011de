// SPDX-License-Identifier: Apache-2.0
// Children of this program: what one does first that was forked to do a part of its work, and one that
// does nothing.
#ifndef STALL_CHILD_PROCESS_H
#define STALL_CHILD_PROCESS_H

#include <sys/types.h>

#define STALL_CHILD_FD 3
#define STALL_CHILD_MAX_FDS 4

// Keeps these descriptors, under the numbers from STALL_CHILD_FD on; 0, 1 and 2 are /dev/null.
void stall_child_keep_only(const int *fds, int count);
// The program decides when it ends, also after a Ctrl-C that the terminal sends to both.
void stall_child_set_signals(void);

// A child that does nothing, to try on it what is to be done to a target.
// It may be read by its own user, as a server may, even where this process forbids that for
// itself. It ends with its parent. -1 and errno on failure.
pid_t stall_idle_child_create(void);

// Keeps errno.
void stall_idle_child_destroy(pid_t child);

#endif

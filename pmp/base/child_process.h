// SPDX-License-Identifier: Apache-2.0
// What a child does first that was forked to work for the program on its own.
#ifndef STALL_CHILD_PROCESS_H
#define STALL_CHILD_PROCESS_H

#define STALL_CHILD_FD 3
#define STALL_CHILD_MAX_FDS 4

// Keeps these descriptors, under the numbers from STALL_CHILD_FD on; 0, 1 and 2 are /dev/null.
void stall_child_keep_only(const int *fds, int count);
// The program decides when it ends, also after a Ctrl-C that the terminal sends to both.
void stall_child_set_signals(void);

#endif

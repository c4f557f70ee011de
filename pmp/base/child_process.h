// SPDX-License-Identifier: Apache-2.0
// What a child does first that was forked to work for the program on its own.
#ifndef STALL_CHILD_PROCESS_H
#define STALL_CHILD_PROCESS_H

#define STALL_CHILD_FD 3

// Keeps one descriptor, under the number STALL_CHILD_FD; 0, 1 and 2 are /dev/null.
void stall_child_keep_only(int fd);
// The program decides when it ends, also after a Ctrl-C that the terminal sends to both.
void stall_child_set_signals(void);

#endif

// SPDX-License-Identifier: Apache-2.0
// Files for a process in a sandbox, which can open none: its parent opens them, as far as the parent's
// user has named their folders, or any user may read them.
#ifndef STALL_PATH_BROKER_H
#define STALL_PATH_BROKER_H

#include <stdbool.h>

// In the child: from now on stall_path_open() asks through this socket. Of what is not in such a folder
// it gets what any user may read.
void stall_path_ask(int socket);
// In the parent: answers one request. False: the other side has ended.
bool stall_path_answer(int socket);

#endif

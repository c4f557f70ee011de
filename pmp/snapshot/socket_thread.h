// SPDX-License-Identifier: Apache-2.0
// The thread of a server that serves a connection, where the server does not name it: one that waits
// for what its client sends. A server with a pool of threads has none.
#ifndef STALL_SOCKET_THREAD_H
#define STALL_SOCKET_THREAD_H

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/target.h"

// Finds the one thread that waits in a system call for data from a socket: `inode` is the number of the
// process's end of it. *ret is its number in its own pid namespace. STALL_ERROR_AGAIN: there is none
// now, or more than one.
struct stall_error *stall_socket_thread_find(const struct stall_target *target, uint64_t inode,
					     pid_t *ret);

#endif

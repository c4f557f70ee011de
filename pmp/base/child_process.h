// SPDX-License-Identifier: Apache-2.0
// Children of this program: the first steps of a child that does a part of its work, a child that
// does nothing, and messages with a descriptor between parent and child.
#ifndef STALL_CHILD_PROCESS_H
#define STALL_CHILD_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#define STALL_CHILD_FD 3
#define STALL_CHILD_MAX_FDS 5

// Keeps these descriptors, under the numbers from STALL_CHILD_FD on; 0, 1 and 2 are /dev/null.
void stall_child_keep_only(const int *fds, int count);
// Output and errors are /dev/null. A child that is left behind would keep who reads ours waiting.
void stall_child_close_output(void);
// The program decides when it ends, also after a Ctrl-C that the terminal sends to both.
void stall_child_set_signals(void);

// Ends a child by SIGKILL and waits for it a moment. One that waits for a disk that does not answer
// cannot be ended now: it is left behind, and reaped when another child ends after it. False: it is.
bool stall_child_end(pid_t pid);
// How many of those are still there.
size_t stall_children_left(void);

// A child that does nothing, to try operations on it before a target. Its own user may read it,
// like a server, even where this process forbids that for itself. It ends with its parent. -1 and
// errno on failure.
pid_t stall_idle_child_create(void);

// Keeps errno.
void stall_idle_child_destroy(pid_t child);

#define STALL_MAX_DESCRIPTORS 2 // of one message

// Sends the parts as one message, with descriptors. `flags` as of sendmsg(2). Returns as that does.
ssize_t stall_send_descriptors(int socket, struct iovec *parts, size_t count, const int *fds,
			       size_t fd_count, int flags);
// With one where `fd` is one.
ssize_t stall_send_descriptor(int socket, struct iovec *parts, size_t count, int fd, int flags);

// Receives one message, with `fd_count` descriptors at most: what is missing is -1. Returns as
// recvmsg(2).
ssize_t stall_receive_descriptors(int socket, struct iovec *parts, size_t count, int *ret_fds,
				  size_t fd_count);
ssize_t stall_receive_descriptor(int socket, struct iovec *parts, size_t count, int *ret_fd);

#endif

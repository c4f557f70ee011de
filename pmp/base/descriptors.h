// SPDX-License-Identifier: Apache-2.0
// Messages between our own processes that a descriptor may go with.
#ifndef STALL_DESCRIPTORS_H
#define STALL_DESCRIPTORS_H

#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

// Sends the parts as one message, with a descriptor where `fd` is one. `flags` as of sendmsg(2).
// Returns as that does.
ssize_t stall_send_descriptor(int socket, struct iovec *parts, size_t count, int fd, int flags);

// Receives one message; `ret_fd` is -1 where no descriptor came with it. Returns as recvmsg(2).
ssize_t stall_receive_descriptor(int socket, struct iovec *parts, size_t count, int *ret_fd);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "base/descriptors.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

ssize_t stall_send_descriptor(int socket, struct iovec *parts, size_t count, int fd, int flags)
{
	union control control = {};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
	ssize_t n;

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
	}
	do {
		n = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n;
}

ssize_t stall_receive_descriptor(int socket, struct iovec *parts, size_t count, int *ret_fd)
{
	union control control;
	struct msghdr message = {
		.msg_iov = parts,
		.msg_iovlen = count,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n;

	*ret_fd = -1;
	do {
		n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	struct cmsghdr *cmsg = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(cmsg), sizeof(int));
	return n;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static void close_from(int first)
{
	if (syscall(SYS_close_range, first, ~0U, 0) == 0)
		return;
	for (int fd = first; fd < 65536; fd++) // before Linux 5.9
		close(fd);
}

void stall_child_keep_only(const int *fds, int count)
{
	int null = open("/dev/null", O_RDWR), apart[STALL_CHILD_MAX_FDS];

	// Moving one must not close another.
	for (int i = 0; i < count; i++)
		apart[i] = fcntl(fds[i], F_DUPFD, STALL_CHILD_FD + count);
	for (int i = 0; i < STALL_CHILD_FD; i++)
		dup2(null, i);
	for (int i = 0; i < count; i++)
		dup2(apart[i], STALL_CHILD_FD + i);
	close_from(STALL_CHILD_FD + count);
}

void stall_child_close_output(void)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	dup2(null, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
	close(null);
}

void stall_child_set_signals(void)
{
	for (int signal_number = 1; signal_number < NSIG; signal_number++)
		signal(signal_number, SIG_DFL);
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

#define END_NS UINT64_C(100000000)
#define MAX_LEFT 64

static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t left[MAX_LEFT];

// Those of a parent that was forked are not ours: waitpid(2) then fails, and they are forgotten.
static size_t reap_left(void)
{
	size_t count = 0;

	for (size_t i = 0; i < MAX_LEFT; i++) {
		if (left[i] && waitpid(left[i], NULL, __WALL | WNOHANG) != 0)
			left[i] = 0;
		count += left[i] != 0;
	}
	return count;
}

static void leave(pid_t pid)
{
	pthread_mutex_lock(&left_lock);
	reap_left();
	for (size_t i = 0; i < MAX_LEFT; i++) {
		if (left[i])
			continue;
		left[i] = pid;
		break;
	}
	pthread_mutex_unlock(&left_lock);
}

size_t stall_children_left(void)
{
	pthread_mutex_lock(&left_lock);
	size_t count = reap_left();
	pthread_mutex_unlock(&left_lock);
	return count;
}

bool stall_child_end(pid_t pid)
{
	uint64_t until_ns = stall_clock_ns(CLOCK_MONOTONIC) + END_NS;
	struct timespec nap = {.tv_nsec = 100000};

	if (kill(pid, SIGKILL) < 0 && errno == EPERM) {
		// In a sandbox, which forbids it: it ends as its socket closes, or with us.
		leave(pid);
		return true;
	}
	do {
		if (waitpid(pid, NULL, __WALL | WNOHANG) != 0)
			return true;
		nanosleep(&nap, NULL);
	} while (stall_clock_ns(CLOCK_MONOTONIC) < until_ns);
	leave(pid);
	return false;
}

pid_t stall_idle_child_create(void)
{
	// A child inherits its parent's setting, so the parent need not wait until the child has
	// set its own.
	bool forbidden = prctl(PR_GET_DUMPABLE) != 1;
	pid_t parent = getpid();

	if (forbidden)
		prctl(PR_SET_DUMPABLE, 1);
	pid_t child = fork();
	int errnum = errno;
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		// It may have been killed before that.
		while (getppid() == parent)
			pause();
		_exit(0);
	}
	if (forbidden)
		prctl(PR_SET_DUMPABLE, 0);
	errno = errnum;
	return child;
}

void stall_idle_child_destroy(pid_t child)
{
	int errnum = errno;

	stall_child_end(child);
	errno = errnum;
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(STALL_MAX_DESCRIPTORS * sizeof(int))];
};

ssize_t stall_send_descriptors(int socket, struct iovec *parts, size_t count, const int *fds,
			       size_t fd_count, int flags)
{
	union control control = {};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
	ssize_t n;

	if (fd_count) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_LEN(fd_count * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(&control.header), fds, fd_count * sizeof(int));
	}
	do {
		n = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n;
}

ssize_t stall_send_descriptor(int socket, struct iovec *parts, size_t count, int fd, int flags)
{
	return stall_send_descriptors(socket, parts, count, &fd, fd >= 0, flags);
}

ssize_t stall_receive_descriptors(int socket, struct iovec *parts, size_t count, int *ret_fds,
				  size_t fd_count)
{
	union control control;
	struct msghdr message = {
		.msg_iov = parts,
		.msg_iovlen = count,
		.msg_control = &control,
		// The padding of CMSG_SPACE() has room for one more, which nobody would close.
		.msg_controllen = CMSG_LEN(fd_count * sizeof(int)),
	};
	ssize_t n;

	memset(ret_fds, -1, fd_count * sizeof(int));
	do {
		n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	struct cmsghdr *cmsg = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fds, CMSG_DATA(cmsg), cmsg->cmsg_len - CMSG_LEN(0));
	return n;
}

ssize_t stall_receive_descriptor(int socket, struct iovec *parts, size_t count, int *ret_fd)
{
	return stall_receive_descriptors(socket, parts, count, ret_fd, 1);
}

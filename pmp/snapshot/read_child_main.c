// SPDX-License-Identifier: Apache-2.0
#include "snapshot/read_child_main.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"

#define BATCH 512 // ranges a call; the kernel takes 1024 (UIO_MAXIOV)

bool stall_read_send(int socket, const struct stall_read_message *message, int fd)
{
	struct iovec part = {(void *)message, sizeof(*message)};

	return stall_send_descriptor(socket, &part, 1, fd, 0) == (ssize_t)sizeof(*message);
}

bool stall_read_receive(int socket, struct stall_read_message *ret, int *ret_fd)
{
	struct iovec part = {ret, sizeof(*ret)};

	return stall_receive_descriptor(socket, &part, 1, ret_fd) == (ssize_t)sizeof(*ret);
}

// One call. Marks what was read and returns how many ranges are settled (at least one, since the
// range that a call stopped in cannot be read further), or 0 with errno.
static size_t read_batch(pid_t pid, struct stall_read_range *ranges, size_t count)
{
	struct iovec local[BATCH], remote[BATCH];
	size_t settled = 0;

	for (size_t i = 0; i < count; i++) {
		local[i] = (struct iovec){ranges[i].to, ranges[i].size};
		remote[i] = (struct iovec){(void *)(uintptr_t)ranges[i].address, ranges[i].size};
	}
	ssize_t n = process_vm_readv(pid, local, count, remote, count, 0);
	if (n < 0 && errno != EFAULT)
		return 0;
	for (size_t left = n < 0 ? 0 : (size_t)n; settled < count; settled++) {
		struct stall_read_range *range = &ranges[settled];

		if (left < range->size) {
			range->done = left;
			return settled + 1;
		}
		range->done = range->size;
		left -= range->size;
	}
	return settled;
}

static int read_ranges(struct stall_read_region *region, pid_t pid, size_t count)
{
	for (size_t i = 0; i < count;) {
		size_t settled =
			read_batch(pid, region->ranges + i, count - i < BATCH ? count - i : BATCH);

		if (!settled)
			return errno;
		i += settled;
		region->settled = i;
	}
	return 0;
}

void stall_read_range(int fd, struct stall_read_range *range)
{
	while (range->done < range->size) {
		ssize_t n = pread(fd, (char *)range->to + range->done, range->size - range->done,
				  (off_t)(range->address + range->done));
		if (n <= 0)
			return;
		range->done += (size_t)n;
	}
}

// Where process_vm_readv(2) is missing or filtered by seccomp.
static int read_ranges_of_file(struct stall_read_region *region, int procfd, size_t count)
{
	_cleanup_close_ int fd = openat(procfd, "mem", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? ESRCH : errno;
	for (size_t i = 0; i < count; i++) {
		stall_read_range(fd, &region->ranges[i]);
		region->settled = i + 1;
	}
	return 0;
}

// A file of /proc gives a page a call.
static int read_file(struct stall_read_region *region, int fd, struct stall_read_message *message)
{
	size_t size = 0;

	while (size < message->size) {
		ssize_t n = read(fd, region->copy + size, message->size - size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && !size)
			return errno;
		if (n <= 0)
			break;
		size += (size_t)n;
		region->settled++;
	}
	message->size = size;
	return 0;
}

// `file` stays open between two messages.
static int answer(struct stall_read_region *region, struct stall_read_message *message, int procfd,
		  int *file)
{
	switch (message->op) {
	case STALL_READ_MEMORY:
		return read_ranges(region, message->pid, message->count);
	case STALL_READ_MEMORY_FILE:
		return read_ranges_of_file(region, procfd, message->count);
	case STALL_OPEN_FILE:
		stall_closep(file);
		*file = openat(procfd, message->path, O_RDONLY | O_CLOEXEC);
		return *file < 0 ? errno : 0;
	case STALL_READ_FILE:
		return read_file(region, *file, message);
	case STALL_OPEN_LINK:
		stall_closep(file);
		*file = openat(procfd, message->path, O_PATH | O_CLOEXEC);
		return *file < 0 ? errno : 0;
	}
	return EINVAL;
}

_Noreturn void stall_read_child_main(struct stall_read_region *region, int socket, pid_t parent)
{
	struct stall_read_message message;
	int procfd, file = -1;

	stall_child_set_signals();
	stall_child_keep_only(&socket, 1);
	socket = STALL_CHILD_FD;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	// It may have been killed before that.
	if (getppid() != parent)
		_exit(0);
	while (stall_read_receive(socket, &message, &procfd)) {
		message.status = answer(region, &message, procfd, &file);
		stall_closep(&procfd);
		if (!stall_read_send(socket, &message, message.op == STALL_OPEN_LINK ? file : -1))
			break;
		// What is open holds its file system.
		if (message.op == STALL_OPEN_LINK ||
		    (message.op == STALL_READ_FILE && !message.size)) {
			stall_closep(&file);
			file = -1;
		}
	}
	_exit(0);
}

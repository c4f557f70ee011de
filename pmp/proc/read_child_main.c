// SPDX-License-Identifier: Apache-2.0
#include "proc/read_child_main.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/trust.h"

#define BATCH 512 // ranges a call; the kernel takes 1024 (UIO_MAXIOV)

bool stall_read_send(int socket, const struct stall_read_message *message, const int *fds,
		     size_t fd_count)
{
	struct iovec part = {(void *)message, sizeof(*message)};

	while (fd_count && fds[fd_count - 1] < 0)
		fd_count--;
	return stall_send_descriptors(socket, &part, 1, fds, fd_count, 0) ==
	       (ssize_t)sizeof(*message);
}

bool stall_read_receive(int socket, struct stall_read_message *ret, int *ret_fds, size_t fd_count)
{
	struct iovec part = {ret, sizeof(*ret)};

	return stall_receive_descriptors(socket, &part, 1, ret_fds, fd_count) ==
	       (ssize_t)sizeof(*ret);
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
		region->settled = (uint32_t)i;
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
		region->settled = (uint32_t)i + 1;
	}
	return 0;
}

// A file of /proc gives a page a call.
static int read_file(struct stall_read_region *region, int fd, struct stall_read_message *message)
{
	size_t size = 0;

	while (size < message->size) {
		uint8_t *to = region->copy + size;
		ssize_t n = message->offset < 0 ? read(fd, to, message->size - size)
						: pread(fd, to, message->size - size,
							message->offset + (off_t)size);

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

/* Paths. */

// Links stay within the folder, where the kernel knows how (5.6).
static int open_below(int folder, const char *path, int flags)
{
	struct open_how how = {.flags = (unsigned int)flags, .resolve = RESOLVE_IN_ROOT};
	int fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof(how));

	if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
		return fd;
	while (*path == '/')
		path++;
	return openat(folder, *path ? path : ".", flags);
}

// In the root of the process with this folder of /proc, or in ours.
static int open_in_root(int procfd, const char *path, int flags)
{
	_cleanup_close_ int root =
		openat(procfd, procfd < 0 ? "/" : "root", O_PATH | O_DIRECTORY | O_CLOEXEC);

	return root < 0 ? -1 : open_below(root, path, flags);
}

// O_PATH touches no device and waits for no FIFO: the type is checked before the file is opened, and
// that neither waits for a lease.
static int open_again(int path_fd, unsigned int how)
{
	int flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_RDONLY;
	char path[32];

	if ((how & STALL_PATH_HOW) == STALL_PATH_FOLDER)
		flags |= O_DIRECTORY;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	int fd = how & STALL_PATH_QUIET ? open(path, flags | O_NOATIME) : -1;
	// Only its owner may ask for that.
	return fd < 0 ? open(path, flags) : fd;
}

static void read_filesystem(int fd, struct stall_path_status *status)
{
	struct statfs filesystem;

	if (fstatfs(fd, &filesystem) == 0)
		status->filesystem = (uint32_t)filesystem.f_type;
}

// O_PATH of a path that nobody else can change. With another status the reason is the answer.
static int open_trusted(struct stall_read_region *region, struct stall_read_message *message,
			int folder, const char *path, int flags, int *ret)
{
	struct stall_trust trust = folder < 0 ? stall_trust_own() : stall_trust_named();
	const char *dir = path + strlen(path) + 1;
	struct stall_error *err =
		stall_trusted_open(&trust, folder < 0 ? AT_FDCWD : folder, dir, path, flags, ret);
	int status = !err ? 0 : stall_is_distrust(err) ? STALL_READ_DISTRUST : err->errnum;

	if (status == STALL_READ_DISTRUST) {
		snprintf((char *)region->copy, STALL_READ_COPY, "%s", err->message);
		message->size = strlen(err->message) + 1;
	}
	stall_error_destroy(err);
	return status;
}

static int reach_path(struct stall_read_region *region, struct stall_read_message *message,
		      int folder, int *ret)
{
	int flags = O_PATH | O_CLOEXEC | (message->how & STALL_PATH_NOFOLLOW ? O_NOFOLLOW : 0);
	char path[2 * PATH_MAX + 1];

	memcpy(path, region->copy, message->size);
	path[message->size] = '\0';
	if (message->how & STALL_PATH_TRUSTED)
		return open_trusted(region, message, folder, path, flags, ret);
	if (message->below == STALL_READ_BELOW_FOLDER)
		*ret = open_below(folder, path, flags);
	else if (message->below == STALL_READ_BELOW_ROOT)
		*ret = open_in_root(folder, path, flags);
	else
		*ret = openat(folder < 0 ? AT_FDCWD : folder, path, flags);
	return *ret < 0 ? errno : 0;
}

static void read_name(int fd, struct stall_read_region *region, struct stall_read_message *message)
{
	char link[32];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, (char *)region->copy, PATH_MAX - 1);
	message->size = length > 0 ? (size_t)length : 0;
	region->copy[message->size++] = '\0';
}

// Its close(2) asks who serves it (FUSE, NFS 4), and waits for the answer, also at an exit. An overlay
// can be of such file systems.
static bool may_wait_at_close(const struct stall_path_status *status, unsigned int how)
{
	return !stall_path_is_local(status) ||
	       (status->filesystem == OVERLAYFS_SUPER_MAGIC && !(how & STALL_PATH_TO_MAP));
}

static int open_path(struct stall_read_region *region, struct stall_read_message *message,
		     int folder, int *ret)
{
	struct stall_path_status *status = &region->status;
	unsigned int how = message->how & STALL_PATH_HOW;
	_cleanup_close_ int fd = -1;
	int errnum = reach_path(region, message, folder, &fd);

	if (!errnum)
		errnum = stall_path_status_read(fd, "", AT_EMPTY_PATH, status);
	if (errnum)
		return errnum;
	read_filesystem(fd, status);
	if (how == STALL_PATH_READ && !S_ISREG(status->mode))
		return EINVAL;
	// A secret has no such bit.
	if (message->how & STALL_PATH_PUBLIC &&
	    !(status->mode & (S_IROTH | S_IXUSR | S_IXGRP | S_IXOTH)))
		return EACCES;
	if (message->how & STALL_PATH_NAME)
		read_name(fd, region, message);
	if (how == STALL_PATH_STATUS ||
	    (how == STALL_PATH_READ && message->how & STALL_PATH_NO_WAIT &&
	     may_wait_at_close(status, message->how))) {
		*ret = fd;
		fd = -1;
		return 0;
	}
	*ret = open_again(fd, message->how);
	return *ret < 0 ? errno : 0;
}

static int list_folder(struct stall_read_region *region, int folder,
		       struct stall_read_message *message)
{
	ssize_t n = syscall(SYS_getdents64, folder, region->copy, message->size);

	if (n < 0)
		return errno;
	message->size = (size_t)n;
	return 0;
}

// As many as fit, each a record and its path with its terminator; what is not a file is left out.
// The path first: a file that is unlinked in between is unlinked, under the path that was read.
static void list_descriptors(struct stall_read_region *region, int procfd,
			     struct stall_read_message *message)
{
	size_t used = 0, done = 0;

	for (; done < message->count; done++, region->settled++) {
		struct stall_read_descriptor found = {.fd = region->numbers[done]};
		char link[32], path[PATH_MAX + 16];
		struct stat of_link;

		snprintf(link, sizeof(link), "fd/%d", found.fd);
		ssize_t length = readlinkat(procfd, link, path, sizeof(path) - 1);
		if (length < 0 && errno == ENOENT)
			continue; // closed meanwhile
		if (length > 0 && path[0] != '/')
			continue;
		found.errnum = length <= 0 ? EACCES
					   : stall_path_status_read(procfd, link, 0, &found.status);
		if (fstatat(procfd, link, &of_link, AT_SYMLINK_NOFOLLOW) == 0)
			found.status.link_mode = of_link.st_mode;
		found.size = (uint32_t)(length > 0 ? length : 0) + 1;
		path[found.size - 1] = '\0';
		if (sizeof(found) + found.size > STALL_READ_COPY - used)
			break;
		memcpy(region->copy + used, &found, sizeof(found));
		memcpy(region->copy + used + sizeof(found), path, found.size);
		used += sizeof(found) + found.size;
	}
	message->count = (uint32_t)done;
	message->size = used;
}

// It is closed before the answer: a wait for that is one of this request.
static int pass_file(const struct stall_read_region *region,
		     const struct stall_read_message *message, const int given[STALL_READ_GIVEN])
{
	_cleanup_close_ int file = open_again(given[STALL_READ_FROM], STALL_PATH_READ);
	struct iovec part = {(void *)region->copy, message->size};

	if (file < 0 ||
	    stall_send_descriptor(given[STALL_READ_TO], &part, 1, file, MSG_DONTWAIT) < 0)
		return errno;
	return 0;
}

static int work_on_file(struct stall_read_region *region, const struct stall_read_message *message,
			int path_fd)
{
	_cleanup_close_ int file = open_again(path_fd, STALL_PATH_READ | STALL_PATH_QUIET);

	return file < 0 ? errno : message->work(file, region->copy);
}

int stall_read_answer(struct stall_read_region *region, struct stall_read_message *message,
		      const int given[STALL_READ_GIVEN], int *file)
{
	int from = given[STALL_READ_FROM];

	switch (message->op) {
	case STALL_READ_MEMORY:
		return read_ranges(region, message->pid, message->count);
	case STALL_READ_MEMORY_FILE:
		return read_ranges_of_file(region, from, message->count);
	case STALL_OPEN_FILE:
		stall_closep(file);
		*file = openat(from, (const char *)region->copy, O_RDONLY | O_CLOEXEC);
		return *file < 0 ? errno : 0;
	case STALL_READ_FILE:
		return read_file(region, *file, message);
	case STALL_OPEN_PATH:
		stall_closep(file);
		*file = -1;
		return open_path(region, message, from, file);
	case STALL_LIST_FOLDER:
		return list_folder(region, from, message);
	case STALL_LIST_DESCRIPTORS:
		list_descriptors(region, from, message);
		return 0;
	case STALL_PASS_FILE:
		return pass_file(region, message, given);
	case STALL_WORK_ON_FILE:
		return work_on_file(region, message, from);
	}
	return EINVAL;
}

_Noreturn void stall_read_child_main(struct stall_read_region *region, int socket, pid_t parent)
{
	struct stall_read_message message;
	int given[STALL_READ_GIVEN], file = -1;

	stall_child_set_signals();
	stall_child_keep_only(&socket, 1);
	socket = STALL_CHILD_FD;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	// It may have been killed before that.
	if (getppid() != parent)
		_exit(0);
	while (stall_read_receive(socket, &message, given, STALL_READ_GIVEN)) {
		message.status = stall_read_answer(region, &message, given, &file);
		for (size_t i = 0; i < STALL_READ_GIVEN; i++)
			stall_closep(&given[i]);
		if (!stall_read_send(socket, &message, &file, message.op == STALL_OPEN_PATH))
			break;
		// What is open holds its file system.
		if (message.op == STALL_OPEN_PATH ||
		    (message.op == STALL_READ_FILE && !message.size)) {
			stall_closep(&file);
			file = -1;
		}
	}
	_exit(0);
}

// SPDX-License-Identifier: Apache-2.0
// Calls that write to the disk, or allocate or free space there. A call that the C library makes
// internally (posix_fallocate() of fallocate(), stdio of write()) is part of one wait. syscall(2)
// and io_uring do not get here.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inproc/hooks_wait.h"

static inline __attribute__((always_inline)) bool begin(struct hook *hook,
							const struct recorder_wait *wait)
{
	if (!hook_enter(hook))
		return false;
	hook_here(&hook->place);
	hook_begin(hook, wait, true);
	return true;
}

// The body of a function that waits in `call`; returns its result.
#define WATCH(call, ...)                                                                           \
	({                                                                                         \
		const struct recorder_wait wait_ = {__VA_ARGS__};                                  \
		struct hook hook_;                                                                 \
		bool is_recorded_ = begin(&hook_, &wait_);                                         \
		int result_ = call;                                                                \
		if (is_recorded_)                                                                  \
			hook_end_call(&hook_, result_, 0);                                         \
		result_;                                                                           \
	})

INTERPOSED int fsync(int fd)
{
	return WATCH(REAL(fsync)(fd), .kind = STALL_WAIT_FSYNC, .operation = SYS_fsync, .fd = fd);
}

INTERPOSED int fdatasync(int fd)
{
	return WATCH(REAL(fdatasync)(fd), .kind = STALL_WAIT_FDATASYNC, .operation = SYS_fdatasync,
		     .fd = fd);
}

INTERPOSED int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags)
{
	return WATCH(REAL(sync_file_range)(fd, offset, size, flags),
		     .kind = STALL_WAIT_SYNC_FILE_RANGE, .operation = SYS_sync_file_range, .fd = fd,
		     .value = (uint64_t)offset, .size = (uint64_t)size);
}

INTERPOSED int msync(void *address, size_t size, int flags)
{
	return WATCH(REAL(msync)(address, size, flags), .kind = STALL_WAIT_MSYNC,
		     .operation = SYS_msync, .fd = -1, .value = (uintptr_t)address, .size = size);
}

INTERPOSED int syncfs(int fd)
{
	return WATCH(REAL(syncfs)(fd), .kind = STALL_WAIT_SYNCFS, .operation = SYS_syncfs,
		     .fd = fd);
}

INTERPOSED int fallocate(int fd, int mode, off_t offset, off_t size)
{
	return WATCH(REAL(fallocate)(fd, mode, offset, size), .kind = STALL_WAIT_FALLOCATE,
		     .operation = SYS_fallocate, .fd = fd, .value = (uint64_t)offset,
		     .size = (uint64_t)size);
}

// Returns its error, and leaves errno as its emulation by writes does.
INTERPOSED int posix_fallocate(int fd, off_t offset, off_t size)
{
	const struct recorder_wait wait = {.kind = STALL_WAIT_FALLOCATE,
					   .operation = SYS_fallocate,
					   .fd = fd,
					   .value = (uint64_t)offset,
					   .size = (uint64_t)size};
	struct hook hook;

	if (!begin(&hook, &wait))
		return REAL(posix_fallocate)(fd, offset, size);
	int error = REAL(posix_fallocate)(fd, offset, size);
	hook.error = errno;
	hook_end(&hook, error);
	return error;
}

INTERPOSED int ftruncate(int fd, off_t size)
{
	return WATCH(REAL(ftruncate)(fd, size), .kind = STALL_WAIT_FTRUNCATE,
		     .operation = SYS_ftruncate, .fd = fd, .size = (uint64_t)size);
}

INTERPOSED int unlink(const char *path)
{
	return WATCH(REAL(unlink)(path), .kind = STALL_WAIT_UNLINK, .operation = SYS_unlink,
		     .fd = -1, .path = hook_path(path));
}

INTERPOSED int unlinkat(int directory, const char *path, int flags)
{
	return WATCH(REAL(unlinkat)(directory, path, flags), .kind = STALL_WAIT_UNLINK,
		     .operation = SYS_unlinkat, .fd = -1, .path = hook_path(path));
}

INTERPOSED int rename(const char *from, const char *to)
{
	return WATCH(REAL(rename)(from, to), .kind = STALL_WAIT_RENAME, .operation = SYS_rename,
		     .fd = -1, .path = hook_path(from));
}

INTERPOSED int renameat(int from_directory, const char *from, int to_directory, const char *to)
{
	return WATCH(REAL(renameat)(from_directory, from, to_directory, to),
		     .kind = STALL_WAIT_RENAME, .operation = SYS_renameat, .fd = -1,
		     .path = hook_path(from));
}

// glibc has it since 2.28.
static int call_renameat2(int from_directory, const char *from, int to_directory, const char *to,
			  unsigned flags)
{
	if (real.renameat2)
		return real.renameat2(from_directory, from, to_directory, to, flags);
	return (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
}

INTERPOSED int renameat2(int from_directory, const char *from, int to_directory, const char *to,
			 unsigned flags)
{
	if (STALL_UNLIKELY(!real.renameat2))
		real_resolve();
	return WATCH(call_renameat2(from_directory, from, to_directory, to, flags),
		     .kind = STALL_WAIT_RENAME, .operation = SYS_renameat2, .fd = -1,
		     .path = hook_path(from));
}

ALSO(fallocate, fallocate64);
ALSO(posix_fallocate, posix_fallocate64);
ALSO(ftruncate, ftruncate64);

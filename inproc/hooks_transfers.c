// SPDX-License-Identifier: Apache-2.0
// Positioned reads and writes that are large enough to be a wait. A write that makes its file
// longer is a wait for space.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "inproc/hooks_wait.h"
#include "inproc/raw_call.h"
#include "inproc/recorder_stats.h"

#define LARGE 16384
#define MAX_IOVECS 8 // that are added up, as the BPF programs do

static uint64_t vector_size(const struct iovec *vector, int count)
{
	uint64_t size = 0;

	if (count > MAX_IOVECS)
		count = MAX_IOVECS;
	if (count <= 0 || recorder_is_off() || !hook_may_read(vector, count * sizeof(*vector)))
		return 0;
	for (int i = 0; i < count; i++)
		size += vector[i].iov_len;
	return size;
}

static bool is_extension(const struct stat *st, uint64_t end)
{
	return S_ISREG(st->st_mode) && end > (uint64_t)st->st_size;
}

// Keeps what is rarely needed out of the functions that are called often.
static __attribute__((noinline)) bool begin_unknown(struct hook *hook, struct recorder_wait *wait)
{
	struct stat st;

	if (!hook_enter(hook))
		return false;
	if (wait->kind == STALL_WAIT_WRITE && recorder_file_status(wait->fd, &st)) {
		wait->st = &st;
		if (is_extension(&st, wait->value + wait->size))
			wait->kind = STALL_WAIT_EXTEND;
	}
	hook_begin(hook, wait, wait->kind == STALL_WAIT_EXTEND);
	return true;
}

static inline __attribute__((always_inline)) bool begin(struct hook *hook,
							enum stall_wait_kind kind, uint32_t call,
							int fd, uint64_t size, off_t offset)
{
	struct recorder_wait wait = {
		.kind = kind, .operation = call, .fd = fd, .value = (uint64_t)offset, .size = size};

	hook_here(&hook->place);
	return STALL_LIKELY(hook_begin_transfer(hook, &wait)) || begin_unknown(hook, &wait);
}

// A call that is not recorded is the function's last, so that no frame of ours has to be left: a
// CPU does not predict the returns that follow a system call.
#define WATCH(call, kind, number, fd, size, offset)                                                \
	do {                                                                                       \
		uint64_t size_ = size;                                                             \
		if (size_ < LARGE || recorder_is_off())                                            \
			return call;                                                               \
		struct hook hook_;                                                                 \
		bool is_recorded_ = begin(&hook_, kind, number, fd, size_, offset);                \
		ssize_t result_ = call;                                                            \
		if (is_recorded_)                                                                  \
			hook_end_transfer(&hook_, result_);                                        \
		return result_;                                                                    \
	} while (0)

INTERPOSED ssize_t pread(int fd, void *buffer, size_t size, off_t offset)
{
	WATCH(REAL(pread)(fd, buffer, size, offset), STALL_WAIT_READ, SYS_pread64, fd, size,
	      offset);
}

// _FORTIFY_SOURCE turns pread() into this.
INTERPOSED ssize_t __pread_chk(int fd, void *buffer, size_t size, off_t offset, size_t room);
INTERPOSED ssize_t __pread_chk(int fd, void *buffer, size_t size, off_t offset, size_t room)
{
	WATCH(REAL(pread_chk)(fd, buffer, size, offset, room), STALL_WAIT_READ, SYS_pread64, fd,
	      size, offset);
}

INTERPOSED ssize_t pwrite(int fd, const void *buffer, size_t size, off_t offset)
{
	WATCH(REAL(pwrite)(fd, buffer, size, offset), STALL_WAIT_WRITE, SYS_pwrite64, fd, size,
	      offset);
}

INTERPOSED ssize_t preadv(int fd, const struct iovec *vector, int count, off_t offset)
{
	WATCH(REAL(preadv)(fd, vector, count, offset), STALL_WAIT_READ, SYS_preadv, fd,
	      vector_size(vector, count), offset);
}

INTERPOSED ssize_t pwritev(int fd, const struct iovec *vector, int count, off_t offset)
{
	WATCH(REAL(pwritev)(fd, vector, count, offset), STALL_WAIT_WRITE, SYS_pwritev, fd,
	      vector_size(vector, count), offset);
}

ALSO(pread, pread64);
ALSO(pread, __pread64);
ALSO(__pread_chk, __pread64_chk);
ALSO(pwrite, pwrite64);
ALSO(pwrite, __pwrite64);
ALSO(preadv, preadv64);
ALSO(pwritev, pwritev64);

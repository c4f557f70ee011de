// SPDX-License-Identifier: Apache-2.0
// Preloaded into a server that a benchmark starts itself: each read of a page takes so much longer.
// Reads wait beside each other, as on a disk with many heads or behind a network; the real disk is
// idle meanwhile. (What slow_sync_fs does for syncs: through it O_DIRECT would read nothing late.)
// STALL_SLOW_READS names a file of two 64-bit numbers, which may change while the server runs: the
// microseconds that a read takes longer, and how many there were.

// With it, glibc's header would give pread() and pread64() one name.
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// Smaller ones are of other files than those with pages.
#define PAGE_MIN 4096

struct slow_reads {
	uint64_t us, count;
};

static struct slow_reads *reads;
static ssize_t (*real_pread64)(int, void *, size_t, off64_t);

static __attribute__((constructor)) void slow_reads_preload(void)
{
	const char *path = getenv("STALL_SLOW_READS");
	void *map;
	int fd;

	real_pread64 = dlsym(RTLD_NEXT, "pread64");
	fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(*reads), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map != MAP_FAILED)
		reads = map;
}

static void wait_us(uint64_t us)
{
	struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
	int saved = errno;

	while (us && nanosleep(&left, &left) != 0)
		;
	errno = saved;
}

ssize_t pread64(int fd, void *bytes, size_t count, off64_t offset)
{
	ssize_t ret = real_pread64(fd, bytes, count, offset);

	if (reads && count >= PAGE_MIN) {
		__atomic_add_fetch(&reads->count, 1, __ATOMIC_RELAXED);
		wait_us(__atomic_load_n(&reads->us, __ATOMIC_RELAXED));
	}
	return ret;
}

// With files of 64 bits the two are one.
ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
	return pread64(fd, bytes, count, offset);
}

// What programs call that were built with _FORTIFY_SOURCE.
ssize_t __pread64_chk(int fd, void *bytes, size_t count, off64_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *bytes, size_t count, off64_t offset, size_t room)
{
	if (count > room)
		abort();
	return pread64(fd, bytes, count, offset);
}

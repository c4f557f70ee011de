// SPDX-License-Identifier: Apache-2.0
// Preloaded into a server that a benchmark starts itself: its files lie on a disk that answers each
// sync, and each read of a page, so much later. Calls wait beside each other, as on a disk with many
// heads or behind a network; the real disk is idle meanwhile.
// STALL_SLOW_DISK names a file of four 64-bit numbers, which may change while the server runs: the
// microseconds that a sync and a read take longer, and how many of each there were.
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

struct slow_disk {
	uint64_t sync_us, read_us;
	uint64_t syncs, reads;
};

static struct slow_disk *disk;
static int (*real_fsync)(int), (*real_fdatasync)(int);
static ssize_t (*real_pread64)(int, void *, size_t, off64_t);

static __attribute__((constructor)) void slow_disk_preload(void)
{
	const char *path = getenv("STALL_SLOW_DISK");
	void *map;
	int fd;

	real_fsync = dlsym(RTLD_NEXT, "fsync");
	real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
	real_pread64 = dlsym(RTLD_NEXT, "pread64");
	fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(*disk), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map != MAP_FAILED)
		disk = map;
}

static void wait_us(uint64_t us)
{
	struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
	int saved = errno;

	while (us && nanosleep(&left, &left) != 0)
		;
	errno = saved;
}

static int synced(int ret)
{
	if (disk) {
		__atomic_add_fetch(&disk->syncs, 1, __ATOMIC_RELAXED);
		wait_us(__atomic_load_n(&disk->sync_us, __ATOMIC_RELAXED));
	}
	return ret;
}

int fsync(int fd)
{
	return synced(real_fsync(fd));
}

int fdatasync(int fd)
{
	return synced(real_fdatasync(fd));
}

ssize_t pread64(int fd, void *bytes, size_t count, off64_t offset)
{
	ssize_t ret = real_pread64(fd, bytes, count, offset);

	if (disk && count >= PAGE_MIN) {
		__atomic_add_fetch(&disk->reads, 1, __ATOMIC_RELAXED);
		wait_us(__atomic_load_n(&disk->read_us, __ATOMIC_RELAXED));
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

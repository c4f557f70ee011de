// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_map.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "inproc/ring.h"

// The mappings that the handler searches: `start` is written last, and cleared first.
struct guarded {
	uintptr_t start, end;
	int fd;
	bool cut;
};
static struct guarded guarded[STALL_MAX_RINGS];
static struct sigaction before; // the action of SIGBUS until the first mapping

static struct guarded *find(uintptr_t address)
{
	for (size_t i = 0; i < STALL_MAX_RINGS; i++) {
		uintptr_t start = __atomic_load_n(&guarded[i].start, __ATOMIC_ACQUIRE);

		if (start && start <= address && address < guarded[i].end)
			return &guarded[i];
	}
	return NULL;
}

// A file that was cut has nothing behind its end; a hole in a file on a full disk is one page.
static bool replace(const struct guarded *map, uintptr_t address)
{
	uintptr_t page = address & ~(uintptr_t)(STALL_RING_PAGE - 1);
	struct stat st;
	bool cut = fstat(map->fd, &st) < 0 || (uint64_t)st.st_size < map->end - map->start;
	size_t size = cut ? map->end - page : STALL_RING_PAGE;

	return mmap((void *)page, size, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

// Makes only system calls: it may run within any function.
static void on_bus_error(int signal, siginfo_t *info, void *context)
{
	int errnum = errno;
	struct guarded *map = info->si_code == BUS_ADRERR ? find((uintptr_t)info->si_addr) : NULL;

	if (map && replace(map, (uintptr_t)info->si_addr))
		map->cut = true;
	else
		sigaction(SIGBUS, &before, NULL); // it is raised again, by the same instruction
	errno = errnum;
}

static struct stall_error *install_handler(void)
{
	static bool installed;
	struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};

	if (installed)
		return NULL;
	if (sigaction(SIGBUS, &action, &before) < 0)
		return stall_error_os(errno, "cannot handle SIGBUS");
	installed = true;
	return NULL;
}

static struct guarded *find_free(void)
{
	for (size_t i = 0; i < STALL_MAX_RINGS; i++) {
		if (!guarded[i].start)
			return &guarded[i];
	}
	return NULL;
}

struct stall_error *stall_ring_map(int fd, size_t size, bool writable, void **ret)
{
	struct guarded *map = find_free();
	struct stall_error *err = install_handler();

	if (err)
		return err;
	if (!map)
		return stall_error_create(STALL_ERROR_LIMIT, "more than %d rings at a time",
					  STALL_MAX_RINGS);
	void *base =
		mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return stall_error_os(errno, "mmap");
	madvise(base, size, MADV_DONTFORK);
	*map = (struct guarded){.end = (uintptr_t)base + size, .fd = fd};
	__atomic_store_n(&map->start, (uintptr_t)base, __ATOMIC_RELEASE);
	*ret = base;
	return NULL;
}

void stall_ring_unmap(void *base, size_t size)
{
	struct guarded *map = find((uintptr_t)base);

	munmap(base, size);
	if (map)
		__atomic_store_n(&map->start, 0, __ATOMIC_RELEASE);
}

bool stall_ring_map_was_cut(const void *base)
{
	const struct guarded *map = find((uintptr_t)base);

	return map && __atomic_load_n(&map->cut, __ATOMIC_RELAXED);
}

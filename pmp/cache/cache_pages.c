// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/privileges.h"
#include "proc/path_open.h"
#include "proc/path_status.h"

// include/uapi/linux/mman.h; the headers of older systems lack both.
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

struct cachestat_range {
	uint64_t off, len;
};

struct cachestat_counts {
	uint64_t nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted;
};

// A window of mincore(2): a byte for each of its pages.
#define WINDOW ((uint64_t)1 << 30)

uint64_t stall_cache_page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

enum stall_cache_method stall_cache_method(void)
{
	struct cachestat_range range = {};
	struct cachestat_counts counts;

	// A kernel that has it says that the descriptor is bad; so does no sandbox that forbids it.
	if (syscall(SYS_cachestat, -1, &range, &counts, 0) < 0 && errno == EBADF)
		return STALL_CACHE_CACHESTAT;
	return STALL_CACHE_MINCORE;
}

const char *stall_cache_method_name(enum stall_cache_method method)
{
	return method == STALL_CACHE_CACHESTAT ? "cachestat" : "mincore";
}

static int count_by_cachestat(int fd, uint64_t offset, uint64_t length,
			      struct stall_cache_counts *ret)
{
	struct cachestat_range range = {.off = offset, .len = length};
	struct cachestat_counts counts;

	if (syscall(SYS_cachestat, fd, &range, &counts, 0) < 0)
		return errno;
	*ret = (struct stall_cache_counts){
		.cached = counts.nr_cache,
		.dirty = counts.nr_dirty,
		.writeback = counts.nr_writeback,
		.evicted = counts.nr_evicted,
		.recently_evicted = counts.nr_recently_evicted,
	};
	return 0;
}

// Since Linux 5.2 mincore(2) says "all" of a file to those who neither own it nor may write it
// (can_do_mincore(), mm/mincore.c): what it said would be wrong.
static bool would_be_shown(int fd, const struct stall_path_status *status)
{
	char path[32];

	if (status->uid == geteuid() || stall_has_capability(STALL_CAP_FOWNER))
		return true;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

static int count_window(int fd, uint64_t offset, uint64_t length, unsigned char *pages,
			uint64_t *cached)
{
	uint64_t page_size = stall_cache_page_size();
	void *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, offset);

	if (map == MAP_FAILED)
		return errno;
	int rc = mincore(map, length, pages) < 0 ? errno : 0;
	munmap(map, length);
	for (uint64_t i = 0; !rc && i < (length + page_size - 1) / page_size; i++)
		*cached += pages[i] & 1;
	return rc;
}

static int count_by_mincore(int fd, uint64_t offset, uint64_t length, uint64_t until_ns,
			    struct stall_cache_counts *ret)
{
	uint64_t cached = 0, page_size = stall_cache_page_size();
	struct stall_path_status status;

	if (!stall_fd_status(fd, &status))
		return errno;
	if (!would_be_shown(fd, &status))
		return EPERM;
	uint64_t end = length ? offset + length : status.size;
	if (end > status.size)
		end = status.size;
	_cleanup_free_ unsigned char *pages = malloc(WINDOW / page_size);
	if (!pages)
		return ENOMEM;
	for (uint64_t at = offset - offset % page_size; at < end; at += WINDOW) {
		int rc =
			count_window(fd, at, end - at < WINDOW ? end - at : WINDOW, pages, &cached);
		if (rc)
			return rc;
		if (stall_clock_ns(CLOCK_MONOTONIC) > until_ns)
			return ETIME;
	}
	*ret = (struct stall_cache_counts){.cached = cached};
	return 0;
}

/* Files whose close(2) may wait: a child has them open. */

struct job {
	uint64_t offset, length, until_ns;
	enum stall_cache_method method;
	struct stall_cache_counts counts;
};

static bool has_path_alone(int fd)
{
	return fcntl(fd, F_GETFL) & O_PATH;
}

static int count_job(int fd, void *arg)
{
	struct job *job = arg;

	return stall_cache_count(fd, job->method, job->offset, job->length, job->until_ns,
				 &job->counts);
}

static int drop_job(int fd, void *arg)
{
	const struct job *job = arg;

	return stall_cache_drop(fd, job->offset, job->length);
}

static int count_in_child(int fd, enum stall_cache_method method, uint64_t offset, uint64_t length,
			  uint64_t until_ns, struct stall_cache_counts *ret)
{
	struct stall_path_status status;

	*ret = (struct stall_cache_counts){};
	if (!stall_fd_status(fd, &status))
		return errno;
	uint64_t end = length ? offset + length : status.size;
	for (uint64_t at = offset; at < end; at += WINDOW) {
		struct job job = {at, end - at < WINDOW ? end - at : WINDOW, until_ns, method, {}};
		int rc = stall_path_work(fd, count_job, &job, sizeof(job));

		if (rc)
			return rc;
		ret->cached += job.counts.cached;
		ret->dirty += job.counts.dirty;
		ret->writeback += job.counts.writeback;
		ret->evicted += job.counts.evicted;
		ret->recently_evicted += job.counts.recently_evicted;
		if (stall_clock_ns(CLOCK_MONOTONIC) > until_ns)
			return ETIME;
	}
	return 0;
}

int stall_cache_count(int fd, enum stall_cache_method method, uint64_t offset, uint64_t length,
		      uint64_t until_ns, struct stall_cache_counts *ret)
{
	if (has_path_alone(fd))
		return count_in_child(fd, method, offset, length, until_ns, ret);
	if (method == STALL_CACHE_CACHESTAT)
		return count_by_cachestat(fd, offset, length, ret);
	return count_by_mincore(fd, offset, length, until_ns, ret);
}

int stall_cache_drop(int fd, uint64_t offset, uint64_t length)
{
	struct job job = {.offset = offset, .length = length};

	if (has_path_alone(fd))
		return stall_path_work(fd, drop_job, &job, sizeof(job));
	return posix_fadvise(fd, (off_t)offset, (off_t)length, POSIX_FADV_DONTNEED);
}

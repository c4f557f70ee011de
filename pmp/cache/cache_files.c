// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "snapshot/module_file.h"

#define MAX_NOTES 8

bool stall_cache_is_late(struct stall_cache_scan *scan)
{
	if (!scan->late && stall_clock_ns(CLOCK_MONOTONIC) > scan->until_ns)
		scan->late = true;
	return scan->late;
}

struct stall_error *stall_cache_note(struct stall_cache_scan *scan, const char *format, ...)
{
	struct stall_cache_note *note, **last = &scan->notes;
	va_list args;

	if (scan->note_count++ >= MAX_NOTES)
		return NULL;
	note = calloc(1, sizeof(*note));
	if (!note)
		return &stall_enomem;
	va_start(args, format);
	int rc = vasprintf(&note->text, format, args);
	va_end(args);
	if (rc < 0) {
		free(note);
		return &stall_enomem;
	}
	while (*last)
		last = &(*last)->next;
	*last = note;
	return NULL;
}

static size_t bucket_of(const struct stall_cache_scan *scan, uint64_t dev, uint64_t ino)
{
	uint64_t hash = (ino ^ dev << 40 ^ dev >> 24) * UINT64_C(0x9e3779b97f4a7c15);

	return hash >> 20 & (scan->bucket_count - 1);
}

static struct stall_cache_file *find(const struct stall_cache_scan *scan, uint64_t dev,
				     uint64_t ino)
{
	if (!scan->bucket_count)
		return NULL;
	for (size_t at = bucket_of(scan, dev, ino); scan->buckets[at];
	     at = (at + 1) & (scan->bucket_count - 1)) {
		struct stall_cache_file *file = &scan->files[scan->buckets[at] - 1];
		if (file->dev == dev && file->ino == ino)
			return file;
	}
	return NULL;
}

static void enter(struct stall_cache_scan *scan, size_t index)
{
	const struct stall_cache_file *file = &scan->files[index];
	size_t at = bucket_of(scan, file->dev, file->ino);

	while (scan->buckets[at])
		at = (at + 1) & (scan->bucket_count - 1);
	scan->buckets[at] = index + 1;
}

// Half of the buckets stay free.
static struct stall_error *make_room(struct stall_cache_scan *scan)
{
	if (scan->count < scan->capacity)
		return NULL;
	size_t capacity = scan->capacity ? scan->capacity * 2 : 512;
	struct stall_cache_file *files = reallocarray(scan->files, capacity, sizeof(*files));
	if (!files)
		return &stall_enomem;
	scan->files = files;
	scan->capacity = capacity;
	uint32_t *buckets = calloc(capacity * 2, sizeof(*buckets));
	if (!buckets)
		return &stall_enomem;
	free(scan->buckets);
	scan->buckets = buckets;
	scan->bucket_count = capacity * 2;
	for (size_t i = 0; i < scan->count; i++)
		enter(scan, i);
	return NULL;
}

bool stall_cache_is_memory(const struct stall_cache_file *file)
{
	return file->filesystem == TMPFS_MAGIC || file->filesystem == RAMFS_MAGIC ||
	       file->filesystem == HUGETLBFS_MAGIC;
}

// Those have no pages that could be counted.
static bool is_of_kernel(uint64_t filesystem)
{
	return filesystem == PROC_SUPER_MAGIC || filesystem == SYSFS_MAGIC ||
	       filesystem == CGROUP_SUPER_MAGIC || filesystem == CGROUP2_SUPER_MAGIC ||
	       filesystem == DEBUGFS_MAGIC || filesystem == TRACEFS_MAGIC ||
	       filesystem == SECURITYFS_MAGIC;
}

static uint64_t filesystem_of(struct stall_cache_scan *scan, int fd, uint64_t dev)
{
	struct statfs fs;

	if (!scan->is_dev_known || scan->known_dev != dev) {
		if (fstatfs(fd, &fs) < 0)
			return 0;
		scan->known_dev = dev;
		scan->known_filesystem = (uint32_t)fs.f_type;
		scan->is_dev_known = true;
	}
	return scan->known_filesystem;
}

// Neither waits for the other end of a FIFO, which the file was just seen not to be, nor changes the
// time of the last access. Only its owner may ask for the latter.
static int open_to_read(int path_fd)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	int fd = open(path, flags | O_NOATIME);
	return fd < 0 && errno == EPERM ? open(path, flags) : fd;
}

static void count(struct stall_cache_scan *scan, struct stall_cache_file *file, int path_fd)
{
	_cleanup_close_ int fd = -1;

	if (file->filesystem == HUGETLBFS_MAGIC) {
		file->errnum = EOPNOTSUPP;
		return;
	}
	fd = open_to_read(path_fd);
	if (fd < 0) {
		file->errnum = errno;
		return;
	}
	// The pages are those of the file below, which a mapping leads to, and cachestat(2) does not.
	file->method =
		file->filesystem == OVERLAYFS_SUPER_MAGIC ? STALL_CACHE_MINCORE : scan->method;
	file->errnum = stall_cache_count(fd, file->method, 0, 0, scan->until_ns, &file->counts);
}

struct stall_error *stall_cache_add_path(struct stall_cache_scan *scan, int path_fd,
					 const struct stat *st, const char *path, bool deleted,
					 size_t target, struct stall_cache_file **ret)
{
	struct stall_cache_file *known = find(scan, st->st_dev, st->st_ino);

	*ret = known;
	if (known)
		return NULL;
	uint64_t filesystem = filesystem_of(scan, path_fd, st->st_dev);
	if (is_of_kernel(filesystem))
		return NULL;
	if (scan->count >= scan->options->max_files) {
		scan->limit_reached = true;
		return NULL;
	}
	struct stall_error *err = make_room(scan);
	if (err)
		return err;
	struct stall_cache_file *file = &scan->files[scan->count];
	*file = (struct stall_cache_file){
		.path = strdup(path),
		.dev = st->st_dev,
		.ino = st->st_ino,
		.size = st->st_size,
		.allocated = (uint64_t)st->st_blocks * 512,
		.mtime_ns = st->st_mtim.tv_sec * UINT64_C(1000000000) + st->st_mtim.tv_nsec,
		.class = stall_file_class(path, deleted),
		.filesystem = filesystem,
		.deleted = deleted,
		.target = target,
	};
	if (!file->path)
		return &stall_enomem;
	enter(scan, scan->count++);
	count(scan, file, path_fd);
	*ret = file;
	return NULL;
}

int stall_cache_reopen(const struct stall_cache_scan *scan, const struct stall_cache_file *file)
{
	struct stat st;
	_cleanup_close_ int path_fd = stall_open_in_root(&scan->targets[file->target], file->path);

	if (path_fd < 0 || fstat(path_fd, &st) < 0)
		return -1;
	if (st.st_dev != file->dev || st.st_ino != file->ino || !S_ISREG(st.st_mode)) {
		errno = ESTALE;
		return -1;
	}
	return open_to_read(path_fd);
}

struct stall_error *stall_cache_check(const struct stall_cache_scan *scan)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < scan->target_count; i++)
		err = stall_target_check(&scan->targets[i]);
	return err;
}

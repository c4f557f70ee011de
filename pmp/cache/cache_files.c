// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_files.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"

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
	if (!stall_array_resize(&scan->files, capacity))
		return &stall_enomem;
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

static uint64_t filesystem_of(struct stall_cache_scan *scan, const struct stall_path *where,
			      const struct stall_path_status *status)
{
	struct stall_path_status found = *status;

	if (!scan->is_dev_known || scan->known_dev != status->dev) {
		if (!found.filesystem)
			stall_error_destroy(stall_path_status(where, 0, &found));
		scan->known_dev = status->dev;
		scan->known_filesystem = found.filesystem;
		scan->is_dev_known = true;
	}
	return scan->known_filesystem;
}

// Does not change the time of the last access.
static int open_to_read(const struct stall_path *where, int *ret_errnum,
			struct stall_path_status *ret_status)
{
	int fd;
	struct stall_error *err =
		stall_path_open(where, STALL_PATH_READ | STALL_PATH_QUIET, &fd, ret_status);

	if (err)
		*ret_errnum = err->code == STALL_ERROR_LATE ? ETIME : err->errnum;
	stall_error_destroy(err);
	return fd;
}

static void count(struct stall_cache_scan *scan, struct stall_cache_file *file,
		  const struct stall_path *where)
{
	_cleanup_close_ int fd = -1;

	if (file->filesystem == HUGETLBFS_MAGIC) {
		file->errnum = EOPNOTSUPP;
		return;
	}
	fd = open_to_read(where, &file->errnum, NULL);
	if (fd < 0)
		return;
	// The pages are those of the file below, which a mapping leads to, and cachestat(2) does not.
	file->method =
		file->filesystem == OVERLAYFS_SUPER_MAGIC ? STALL_CACHE_MINCORE : scan->method;
	file->errnum = stall_cache_count(fd, file->method, 0, 0, scan->until_ns, &file->counts);
}

struct stall_error *stall_cache_add_path(struct stall_cache_scan *scan,
					 const struct stall_path *where,
					 const struct stall_path_status *status, const char *path,
					 bool deleted, size_t target, struct stall_cache_file **ret)
{
	struct stall_cache_file *known = find(scan, status->dev, status->ino);

	*ret = known;
	if (known)
		return NULL;
	uint64_t filesystem = filesystem_of(scan, where, status);
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
		.dev = status->dev,
		.ino = status->ino,
		.size = status->size,
		.allocated = status->allocated,
		.mtime_ns = status->mtime_ns,
		.class = stall_file_class(path, deleted),
		.filesystem = filesystem,
		.deleted = deleted,
		.target = target,
	};
	if (!file->path)
		return &stall_enomem;
	enter(scan, scan->count++);
	count(scan, file, where);
	*ret = file;
	return NULL;
}

int stall_cache_reopen(const struct stall_cache_scan *scan, const struct stall_cache_file *file)
{
	const struct stall_path where = {&scan->targets[file->target], STALL_PATH_IN_ROOT,
					 file->path, 0};
	struct stall_path_status status;
	int errnum = 0, fd = open_to_read(&where, &errnum, &status);

	if (fd >= 0 && (status.dev != file->dev || status.ino != file->ino)) {
		close(fd);
		fd = -1;
		errnum = ESTALE;
	}
	errno = errnum;
	return fd;
}

struct stall_error *stall_cache_check(const struct stall_cache_scan *scan)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < scan->target_count; i++)
		err = stall_target_check(&scan->targets[i]);
	return err;
}

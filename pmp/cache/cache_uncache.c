// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_uncache.h"

#include <errno.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cache/cache_scan.h"

// At these boundaries no large folio is cut, which would stay as a whole; the kernel makes none that
// is larger, and none that is not aligned.
#define CHUNK ((uint64_t)64 << 20)
#define SMALLEST ((uint64_t)64 << 10)

struct walk {
	struct stall_cache_scan *scan;
	struct stall_cache_file *file;
	int fd;
	bool drop;
};

// Returns 0 or an errno. The stack of ranges is as deep as a chunk can be halved.
static int walk_chunk(struct walk *walk, uint64_t from, uint64_t to)
{
	struct stall_cache_file *file = walk->file;
	struct {
		uint64_t from, to;
	} todo[32] = {{from, to}};
	size_t count = 1;

	while (count) {
		uint64_t start = todo[--count].from, end = todo[count].to;
		struct stall_cache_counts pages;
		int rc = stall_cache_count(walk->fd, file->method, start, end - start,
					   walk->scan->until_ns, &pages);

		if (rc)
			return rc;
		if (!pages.cached)
			continue;
		if (!pages.dirty && !pages.writeback) {
			file->clean += pages.cached;
			if (walk->drop)
				rc = stall_cache_drop(walk->fd, start, end - start);
			if (rc)
				return rc;
		} else if (end - start <= SMALLEST) {
			file->unclean += pages.cached;
		} else {
			uint64_t middle = start + (end - start) / 2 / SMALLEST * SMALLEST;
			if (middle == start)
				middle = start + SMALLEST;
			todo[count].from = middle;
			todo[count++].to = end;
			todo[count].from = start;
			todo[count++].to = middle;
		}
	}
	return 0;
}

static int walk_file(struct walk *walk)
{
	struct stall_cache_file *file = walk->file;

	for (uint64_t at = 0; at < file->until; at += CHUNK) {
		uint64_t end = file->until - at < CHUNK ? file->until : at + CHUNK;
		int rc = stall_cache_is_late(walk->scan) ? ETIME : walk_chunk(walk, at, end);
		if (rc)
			return rc;
	}
	return 0;
}

static void fail(struct stall_cache_file *file, int errnum)
{
	file->reason = errnum == ESTALE ? STALL_CACHE_REPLACED : STALL_CACHE_FAILED;
	file->errnum = errnum;
}

static void uncache_file(struct stall_cache_scan *scan, struct stall_cache_file *file, bool drop)
{
	struct stall_cache_counts after;
	_cleanup_close_ int fd = stall_cache_reopen(scan, file);
	struct walk walk = {.scan = scan, .file = file, .fd = fd, .drop = drop};

	if (fd < 0) {
		fail(file, errno);
		return;
	}
	file->clean = file->unclean = 0;
	int rc = walk_file(&walk);
	if (!rc && drop) {
		file->dropped = true;
		rc = stall_cache_count(fd, file->method, 0, 0, scan->until_ns, &after);
		if (!rc) {
			file->freed = file->counts.cached > after.cached
					      ? file->counts.cached - after.cached
					      : 0;
			file->counts = after;
		}
	}
	if (rc)
		fail(file, rc);
}

struct stall_error *stall_cache_uncache(struct stall_cache_scan *scan,
					const struct stall_cache_plan *plan, bool drop)
{
	struct stall_error *err = stall_cache_scan_again(scan);

	if (!err)
		err = stall_cache_plan_make(scan, plan);
	for (size_t i = 0; !err && i < scan->count; i++) {
		struct stall_cache_file *file = &scan->files[i];

		if (file->reason != STALL_CACHE_MAY_GO || !file->counts.cached)
			continue;
		// A server that is started again uses other files.
		err = stall_cache_check(scan);
		if (!err)
			uncache_file(scan, file, drop);
	}
	return err;
}

void stall_cache_recount(struct stall_cache_scan *scan)
{
	for (size_t i = 0; i < scan->count; i++) {
		struct stall_cache_file *file = &scan->files[i];
		struct stall_cache_counts now;

		if (!file->dropped)
			continue;
		_cleanup_close_ int fd = stall_cache_reopen(scan, file);
		if (fd < 0 || stall_cache_count(fd, file->method, 0, 0, scan->until_ns, &now))
			continue; // purged meanwhile
		file->recounted = true;
		file->returned =
			now.cached > file->counts.cached ? now.cached - file->counts.cached : 0;
	}
}

// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_plan.h"

#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

// Files of a redo log that were written so soon before the newest one cannot be distinguished from the one
// that is written now: a checkpoint writes to the first file, whichever is the current one.
#define REDO_QUIET_NS (60 * UINT64_C(1000000000))

static const char *const names[] = {
	[STALL_CACHE_MAY_GO] = "may-go",
	[STALL_CACHE_OTHER_CLASS] = "other-class",
	[STALL_CACHE_OPEN] = "open",
	[STALL_CACHE_NEWER] = "newer-than-open",
	[STALL_CACHE_NO_CURRENT] = "no-current",
	[STALL_CACHE_NO_NUMBER] = "no-log",
	[STALL_CACHE_READERS] = "unknown-readers",
	[STALL_CACHE_KEPT] = "kept",
	[STALL_CACHE_NEEDS_ALLOW] = "needs-allow-redo",
	[STALL_CACHE_CURRENT_REDO] = "current-redo",
	[STALL_CACHE_NOT_INNODB] = "not-innodb",
	[STALL_CACHE_IS_MEMORY] = "memory",
	[STALL_CACHE_DIRTY_UNKNOWN] = "dirty-unknown",
	[STALL_CACHE_REPLACED] = "replaced",
	[STALL_CACHE_FAILED] = "failed",
};
_Static_assert(sizeof(names) / sizeof(names[0]) == STALL_CACHE_REASONS, "a name for each");

const char *stall_cache_reason_name(enum stall_cache_reason reason)
{
	return names[reason];
}

// A log with those that it continues: /var/lib/mysql/binlog. and 000042.
struct log_file {
	struct stall_cache_file *file;
	size_t series; // length of the path up to the number
	uint64_t number;
};

struct logs {
	struct log_file *files;
	size_t count;
};

static void logs_deinit(struct logs *logs)
{
	free(logs->files);
}

static bool read_number(struct stall_cache_file *file, struct log_file *ret)
{
	const char *dot = strrchr(file->path, '.'), *slash = strrchr(file->path, '/');
	uint64_t number = 0;

	if (!dot || (slash && dot < slash))
		return false;
	size_t digits = strspn(dot + 1, "0123456789");
	if (!digits || digits > 18 || dot[1 + digits])
		return false;
	for (size_t i = 0; i < digits; i++)
		number = number * 10 + (dot[1 + i] - '0');
	*ret = (struct log_file){.file = file, .series = dot + 1 - file->path, .number = number};
	return true;
}

static bool is_one_series(const struct log_file *a, const struct log_file *b)
{
	return a->file->class == b->file->class && a->file->target == b->file->target &&
	       a->series == b->series && !memcmp(a->file->path, b->file->path, a->series);
}

// By series, its newest file first.
static int compare_logs(const void *x, const void *y)
{
	const struct log_file *a = x, *b = y;

	if (!is_one_series(a, b)) {
		if (a->file->class != b->file->class)
			return a->file->class < b->file->class ? -1 : 1;
		if (a->file->target != b->file->target)
			return a->file->target < b->file->target ? -1 : 1;
		size_t shorter = a->series < b->series ? a->series : b->series;
		int order = memcmp(a->file->path, b->file->path, shorter);
		return order ? order : (a->series > b->series) - (a->series < b->series);
	}
	return (a->number < b->number) - (a->number > b->number);
}

static const char *name_of(const struct stall_cache_file *file)
{
	const char *slash = strrchr(file->path, '/');

	return slash ? slash + 1 : file->path;
}

static bool is_of_innodb_redo(const struct stall_cache_file *file)
{
	return !strncmp(name_of(file), "ib_logfile", strlen("ib_logfile")) ||
	       strstr(file->path, "/#innodb_redo/");
}

static bool is_open(const struct stall_cache_file *file)
{
	return file->readers || file->writers;
}

// What can be said of a file alone.
static enum stall_cache_reason judge(const struct stall_cache_file *file,
				     const struct stall_cache_plan *plan)
{
	if (!(plan->classes & 1u << file->class))
		return STALL_CACHE_OTHER_CLASS;
	if (file->class == STALL_FILE_REDO && !is_of_innodb_redo(file))
		return STALL_CACHE_NOT_INNODB;
	if (file->class == STALL_FILE_REDO && !plan->allow_redo)
		return STALL_CACHE_NEEDS_ALLOW;
	if (file->deleted)
		return STALL_CACHE_OPEN;
	if (stall_cache_is_memory(file))
		return STALL_CACHE_IS_MEMORY;
	if (file->errnum)
		return STALL_CACHE_FAILED;
	if (file->method != STALL_CACHE_CACHESTAT)
		return STALL_CACHE_DIRTY_UNKNOWN;
	return STALL_CACHE_MAY_GO;
}

static uint64_t age_ns(const struct stall_cache_file *file, const struct stall_cache_plan *plan)
{
	return plan->now_ns > file->mtime_ns ? plan->now_ns - file->mtime_ns : 0;
}

// How many bytes of the end of a file are kept, whose series has `files` and `bytes` that are newer.
static uint64_t bytes_kept(const struct stall_cache_file *file, const struct stall_cache_plan *plan,
			   size_t files, uint64_t bytes)
{
	uint64_t left;

	switch (plan->keep) {
	case STALL_CACHE_KEEP_FILES:
		return files < plan->keep_value ? file->size : 0;
	case STALL_CACHE_KEEP_BYTES:
		left = bytes < plan->keep_value ? plan->keep_value - bytes : 0;
		return left < file->size ? left : file->size;
	case STALL_CACHE_KEEP_SECONDS:
		return age_ns(file, plan) / 1000000000 < plan->keep_value ? file->size : 0;
	default:
		return 0;
	}
}

static void keep(struct stall_cache_file *file, const struct stall_cache_plan *plan, size_t files,
		 uint64_t bytes)
{
	uint64_t page_size = stall_cache_page_size();
	uint64_t kept = bytes_kept(file, plan, files, bytes);

	// The page in which the limit is stays.
	file->until = kept ? (file->size - kept) / page_size * page_size
			   : (file->size + page_size - 1) / page_size * page_size;
	if (kept && !file->until)
		file->reason = STALL_CACHE_KEPT;
}

// Files from `first` on, newest first, are one series.
static void plan_series(struct log_file *first, size_t count, const struct stall_cache_plan *plan,
			bool has_unknown_readers)
{
	uint64_t oldest_open = UINT64_MAX, bytes = 0;

	for (size_t i = 0; i < count; i++)
		if (is_open(first[i].file))
			oldest_open = first[i].number;
	for (size_t i = 0; i < count; i++) {
		struct stall_cache_file *file = first[i].file;

		if (is_open(file))
			file->reason = STALL_CACHE_OPEN;
		else if (file->reason != STALL_CACHE_MAY_GO)
			continue;
		else if (oldest_open == UINT64_MAX)
			file->reason = STALL_CACHE_NO_CURRENT;
		// Equal: .1 and .000001 are two files.
		else if (first[i].number >= oldest_open)
			file->reason = STALL_CACHE_NEWER;
		else if (has_unknown_readers)
			file->reason = STALL_CACHE_READERS;
		else
			keep(file, plan, i, bytes);
		bytes += file->size;
	}
}

static void plan_logs(struct logs *logs, const struct stall_cache_plan *plan)
{
	uint64_t readers = 0;

	qsort(logs->files, logs->count, sizeof(*logs->files), compare_logs);
	for (size_t i = 0; i < logs->count; i++)
		if (logs->files[i].file->class == STALL_FILE_BINLOG)
			readers += logs->files[i].file->readers;
	// One is between two files, or reads in a way that is not known here.
	bool unknown = plan->dump_threads > 0 && (uint64_t)plan->dump_threads > readers;
	for (size_t i = 0, next; i < logs->count; i = next) {
		for (next = i + 1; next < logs->count; next++)
			if (!is_one_series(&logs->files[i], &logs->files[next]))
				break;
		plan_series(&logs->files[i], next - i, plan,
			    unknown && logs->files[i].file->class == STALL_FILE_BINLOG);
	}
}

// By folder, the newest first.
static int compare_redo(const void *x, const void *y)
{
	const struct log_file *a = x, *b = y;

	if (!is_one_series(a, b)) {
		size_t shorter = a->series < b->series ? a->series : b->series;
		int order = memcmp(a->file->path, b->file->path, shorter);
		return order ? order : (a->series > b->series) - (a->series < b->series);
	}
	return (a->file->mtime_ns < b->file->mtime_ns) - (a->file->mtime_ns > b->file->mtime_ns);
}

// All files of a log of InnoDB that is written in turns are open all the time; those of a folder
// (MySQL 8.0.30) are while they are used.
static void plan_redo(struct logs *redo, const struct stall_cache_plan *plan)
{
	uint64_t newest = 0, bytes = 0;
	size_t rank = 0;

	qsort(redo->files, redo->count, sizeof(*redo->files), compare_redo);
	for (size_t i = 0; i < redo->count; i++) {
		struct stall_cache_file *file = redo->files[i].file;

		if (!i || !is_one_series(&redo->files[i - 1], &redo->files[i])) {
			newest = file->mtime_ns;
			rank = bytes = 0;
		}
		if (file->reason == STALL_CACHE_MAY_GO) {
			if (newest - file->mtime_ns < REDO_QUIET_NS)
				file->reason = STALL_CACHE_CURRENT_REDO;
			else if (is_open(file) && strstr(file->path, "/#innodb_redo/"))
				file->reason = STALL_CACHE_OPEN;
			else
				keep(file, plan, rank, bytes);
		}
		rank++;
		bytes += file->size;
	}
}

struct stall_error *stall_cache_plan_make(struct stall_cache_scan *scan,
					  const struct stall_cache_plan *plan)
{
	_cleanup_(logs_deinit) struct logs logs = {
		.files = calloc(scan->count + 1, sizeof(*logs.files))};
	_cleanup_(logs_deinit) struct logs redo = {
		.files = calloc(scan->count + 1, sizeof(*redo.files))};

	if (!logs.files || !redo.files)
		return &stall_enomem;
	for (size_t i = 0; i < scan->count; i++) {
		struct stall_cache_file *file = &scan->files[i];

		file->reason = judge(file, plan);
		file->until = 0;
		if (file->reason == STALL_CACHE_OTHER_CLASS)
			continue;
		if (file->class == STALL_FILE_REDO) {
			// One log is what is in one folder.
			redo.files[redo.count++] = (struct log_file){
				.file = file,
				.series = name_of(file) - file->path,
			};
		} else if (read_number(file, &logs.files[logs.count])) {
			logs.count++;
		} else if (file->reason == STALL_CACHE_MAY_GO) {
			file->reason = STALL_CACHE_NO_NUMBER;
		}
	}
	plan_logs(&logs, plan);
	plan_redo(&redo, plan);
	return NULL;
}

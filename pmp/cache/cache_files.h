// SPDX-License-Identifier: Apache-2.0
// The files of a server, and what the page cache holds of each: all that its processes have open, and
// those in its folders that they have not.
#ifndef STALL_CACHE_FILES_H
#define STALL_CACHE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/file_class.h"
#include "base/hash_index.h"
#include "cache/cache_pages.h"
#include "proc/path_open.h"
#include "proc/target.h"

#define STALL_CACHE_MAX_FILES 100000
#define STALL_CACHE_MAX_FOLDERS 64 // that are given

// Why a file stays in the cache. A name for each is in cache_plan.c.
enum stall_cache_reason {
	STALL_CACHE_MAY_GO,
	STALL_CACHE_OTHER_CLASS, // not asked for
	STALL_CACHE_OPEN,
	STALL_CACHE_NEWER,	// than one that is open: it may be read next
	STALL_CACHE_NO_CURRENT, // none of its series is open, so none is known to be the current one
	STALL_CACHE_NO_NUMBER,	// an index, or another file that is no log
	STALL_CACHE_READERS,	// a dump thread reads a file that is not known
	STALL_CACHE_KEPT,	// by --keep
	STALL_CACHE_NEEDS_ALLOW,
	STALL_CACHE_CURRENT_REDO,
	STALL_CACHE_NOT_INNODB,
	STALL_CACHE_IS_MEMORY,
	STALL_CACHE_DIRTY_UNKNOWN,
	STALL_CACHE_REPLACED, // by another file since it was listed
	STALL_CACHE_FAILED,   // errnum says why
	STALL_CACHE_REASONS,
};

struct stall_cache_file {
	char *path; // as the server sees it
	uint64_t dev, ino, size;
	uint64_t allocated; // bytes on the disk: less than the size where it is sparse
	uint64_t mtime_ns;
	enum stall_file_class class;
	uint64_t filesystem; // statfs(2) f_type
	bool deleted;
	size_t target;		       // whose root the path is in
	unsigned int readers, writers; // descriptors of the server: opened for reading only; others
	enum stall_cache_method method;
	int errnum; // why `counts` says nothing; 0: it does
	struct stall_cache_counts counts;
	// cache_plan.h and cache_uncache.h
	enum stall_cache_reason reason;
	uint64_t until;		 // bytes from the start on that may go
	uint64_t clean, unclean; // cached pages of these: that can go, and that cannot
	uint64_t freed;		 // pages
	uint64_t returned;	 // pages that were cached again after a time
	bool dropped, recounted;
};

struct stall_cache_options {
	const pid_t *pids;
	size_t pid_count;
	const char *data_dirs[STALL_CACHE_MAX_FOLDERS]; // as the server sees them: all files
	size_t data_dir_count;
	const char *log_dirs[STALL_CACHE_MAX_FOLDERS]; // files of a known class
	size_t log_dir_count;
	size_t max_files;
	uint64_t deadline_ns;
};

struct stall_cache_folder {
	char *path;
	bool flat; // only files of a known class, and none in folders below
	unsigned int depth;
	size_t target;	   // whose root it is in
	uint64_t dev, ino; // once it was opened
};

struct stall_cache_note {
	char *text;
	struct stall_cache_note *next;
};

struct stall_cache_scan {
	const struct stall_cache_options *options;
	struct stall_target *targets;
	size_t target_count;
	enum stall_cache_method method;
	uint64_t until_ns; // CLOCK_MONOTONIC
	struct stall_cache_file *files;
	size_t count, capacity;
	uint32_t *buckets; // index of a file + 1, by device and inode
	size_t bucket_count;
	struct stall_cache_folder *folders;
	size_t folder_count, folder_capacity;
	struct stall_hash_index folders_by_path, scanned_folders;
	uint64_t known_dev, known_filesystem; // of the latest file: most are of one
	bool is_dev_known;
	bool limit_reached;
	bool late;
	size_t special;	   // FIFOs, sockets and devices that were not opened
	size_t unreadable; // folders and descriptors
	size_t long_paths;
	struct stall_cache_note *notes; // the first few of what could not be read
	size_t note_count;
};

// A descriptor for reading of a listed file that is still the same; -1 and errno.
int stall_cache_reopen(const struct stall_cache_scan *scan, const struct stall_cache_file *file);

// NULL while all of the processes live.
struct stall_error *stall_cache_check(const struct stall_cache_scan *scan);

bool stall_cache_is_memory(const struct stall_cache_file *file);

// A regular file. *ret is NULL where the limit is reached.
struct stall_error *stall_cache_add_path(struct stall_cache_scan *scan,
					 const struct stall_path *where,
					 const struct stall_path_status *status, const char *path,
					 bool deleted, size_t target,
					 struct stall_cache_file **ret);
struct stall_error *stall_cache_note(struct stall_cache_scan *scan, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
bool stall_cache_is_late(struct stall_cache_scan *scan);

#endif

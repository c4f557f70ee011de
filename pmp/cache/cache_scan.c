// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "cache/cache_folders.h"

#define MAX_DESCRIPTORS ((size_t)1 << 20)

// The path behind a descriptor of a process, as that process sees it.
static bool path_of(const struct stall_target *target, const char *link, const struct stat *st,
		    char *ret, size_t size, bool *ret_deleted)
{
	static const char suffix[] = " (deleted)";
	char path[PATH_MAX + 16], root[PATH_MAX];
	ssize_t length = readlinkat(target->procfd, link, path, sizeof(path) - 1);
	size_t cut = sizeof(suffix) - 1;

	if (length <= 0)
		return false;
	path[length] = '\0';
	*ret_deleted = st->st_nlink == 0;
	if (*ret_deleted && (size_t)length > cut && !strcmp(path + length - cut, suffix))
		path[length - cut] = '\0';
	stall_target_root(target, root, sizeof(root));
	snprintf(ret, size, "%s", stall_path_in_root(path, root));
	return true;
}

static struct stall_error *scan_descriptor(struct stall_cache_scan *scan, size_t index, int number)
{
	const struct stall_target *target = &scan->targets[index];
	struct stall_cache_file *file;
	char link[32], path[PATH_MAX + 16];
	struct stat st, mode;
	bool deleted;

	snprintf(link, sizeof(link), "fd/%d", number);
	// The link's own mode says how it was opened (proc_fd_link, fs/proc/fd.c).
	_cleanup_close_ int fd = openat(target->procfd, link, O_PATH | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) // closed meanwhile
		return NULL;
	if (fd < 0 || fstatat(target->procfd, link, &mode, AT_SYMLINK_NOFOLLOW) < 0 ||
	    fstat(fd, &st) < 0) {
		scan->unreadable++;
		return NULL;
	}
	if (!S_ISREG(st.st_mode) || !path_of(target, link, &st, path, sizeof(path), &deleted))
		return NULL;
	struct stall_error *err = stall_cache_add_path(scan, fd, &st, path, deleted, index, &file);
	if (!err && file) {
		if (mode.st_mode & S_IWUSR)
			file->writers++;
		else
			file->readers++;
	}
	return err;
}

static struct stall_error *scan_process(struct stall_cache_scan *scan, size_t index)
{
	const struct stall_target *target = &scan->targets[index];
	struct stall_error *err = NULL;
	size_t seen = 0;

	_cleanup_closedir_ DIR *dir = stall_target_open_files(target);
	if (!dir && (errno == ENOENT || errno == ESRCH))
		return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended",
					  target->pid);
	if (!dir && errno == ENOMEM)
		return &stall_enomem;
	if (!dir)
		return stall_error_create(
			STALL_ERROR_PERMISSION,
			"cannot read which files process %d has open: %s; run it as root, or give "
			"it "
			"capabilities: setcap cap_sys_ptrace,cap_dac_read_search,cap_fowner+ep "
			"stallscope-probe",
			target->pid, strerror(errno));
	for (int number; !err && (number = stall_next_open_file(dir)) >= 0;) {
		if (seen++ == MAX_DESCRIPTORS) {
			scan->limit_reached = true;
			break;
		}
		if (stall_cache_is_late(scan))
			break;
		err = scan_descriptor(scan, index, number);
	}
	return err;
}

static struct stall_error *scan_processes(struct stall_cache_scan *scan)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < scan->target_count; i++)
		err = scan_process(scan, i);
	return err;
}

struct stall_error *stall_cache_scan_init(struct stall_cache_scan *scan,
					  const struct stall_cache_options *options)
{
	struct stall_error *err = NULL;

	*scan = (struct stall_cache_scan){
		.options = options,
		.method = stall_cache_method(),
		.until_ns = stall_clock_ns(CLOCK_MONOTONIC) + options->deadline_ns,
	};
	scan->targets = calloc(options->pid_count, sizeof(*scan->targets));
	if (!scan->targets)
		return &stall_enomem;
	for (size_t i = 0; !err && i < options->pid_count; i++) {
		err = stall_target_init(&scan->targets[i], options->pids[i]);
		if (!err)
			scan->target_count++;
	}
	if (!err)
		err = scan_processes(scan);
	if (!err)
		err = stall_cache_scan_folders(scan);
	return err ? err : stall_cache_check(scan);
}

void stall_cache_scan_deinit(struct stall_cache_scan *scan)
{
	for (size_t i = 0; i < scan->target_count; i++)
		stall_target_deinit(&scan->targets[i]);
	free(scan->targets);
	for (size_t i = 0; i < scan->count; i++)
		free(scan->files[i].path);
	free(scan->files);
	free(scan->buckets);
	stall_cache_folders_deinit(scan);
	for (struct stall_cache_note *note = scan->notes, *next; note; note = next) {
		next = note->next;
		free(note->text);
		free(note);
	}
}

struct stall_error *stall_cache_scan_again(struct stall_cache_scan *scan)
{
	for (size_t i = 0; i < scan->count; i++)
		scan->files[i].readers = scan->files[i].writers = 0;
	return scan_processes(scan);
}

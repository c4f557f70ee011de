// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "cache/cache_folders.h"
#include "proc/descriptors.h"

#define MAX_DESCRIPTORS ((size_t)1 << 20)

struct visit {
	struct stall_cache_scan *scan;
	size_t target;
	struct stall_error *err;
};

static bool take_descriptor(void *arg, const struct stall_descriptor *descriptor)
{
	struct visit *visit = arg;
	struct stall_cache_scan *scan = visit->scan;
	struct stall_cache_file *file;
	char link[32];

	if (stall_cache_is_late(scan))
		return false;
	if (!S_ISREG(descriptor->status.mode))
		return true;
	snprintf(link, sizeof(link), "fd/%d", descriptor->fd);
	const struct stall_path where = {&scan->targets[visit->target], STALL_PATH_IN_PROC, link,
					 0};
	visit->err = stall_cache_add_path(scan, &where, &descriptor->status, descriptor->path,
					  descriptor->deleted, visit->target, &file);
	if (!visit->err && file) {
		// The link's own mode says how it was opened (proc_fd_link, fs/proc/fd.c).
		if (descriptor->status.link_mode & S_IWUSR)
			file->writers++;
		else
			file->readers++;
	}
	return !visit->err;
}

static struct stall_error *scan_process(struct stall_cache_scan *scan, size_t index)
{
	const struct stall_target *target = &scan->targets[index];
	struct visit visit = {.scan = scan, .target = index};
	size_t lost;
	struct stall_error *err =
		stall_descriptors_visit(target, MAX_DESCRIPTORS, take_descriptor, &visit, &lost);

	scan->unreadable += lost;
	if (err && err->code == STALL_ERROR_PERMISSION) {
		int errnum = err->errnum;

		stall_error_destroy(err);
		return stall_error_create(
			STALL_ERROR_PERMISSION,
			"cannot read which files process %d has open: %s; run it as root, or give "
			"it "
			"capabilities: setcap cap_sys_ptrace,cap_dac_read_search,cap_fowner+ep "
			"stallscope-probe",
			target->pid, strerror(errnum));
	}
	return err ? err : visit.err;
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

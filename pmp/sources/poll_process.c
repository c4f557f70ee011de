// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proc/proc_file.h"

#define OWN_LINKS 2 // of /proc/PID/task; each thread is one more (proc_task_getattr)

static bool read_image(const struct stall_poll_process *process, uint64_t *ret)
{
	struct stall_proc_stat stat;

	if (stall_proc_stat_read(&process->target, process->target.reader, &stat))
		return false;
	*ret = stat.start_code ^ stat.start_stack << 1;
	return true;
}

void stall_poll_process_check(struct stall_poll_process *process, uint64_t now_ns)
{
	uint64_t image;

	process->checked_ns = now_ns;
	if (!read_image(process, &image) || image == process->image)
		return;
	process->image = image;
	process->replaced = true;
}

bool stall_poll_process_is_stale(const struct stall_poll_process *process)
{
	struct stat status;

	return fstat(process->task, &status) == 0 && status.st_nlink != process->count + OWN_LINKS;
}

// Both lists are by TID.
static struct stall_error *merge(struct stall_poll_reader *reader,
				 struct stall_poll_process *process, const pid_t *tids,
				 size_t count, stall_poll_ended_fn ended, void *arg)
{
	struct stall_poll_thread **merged = calloc(count + 1, sizeof(struct stall_poll_thread *));
	size_t old = 0, done = 0;

	if (!merged)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++) {
		while (old < process->count && process->threads[old]->tid < tids[i]) {
			ended(arg, process->threads[old]);
			stall_poll_thread_destroy(reader, process->threads[old++]);
		}
		if (old < process->count && process->threads[old]->tid == tids[i])
			merged[done] = process->threads[old++];
		else
			merged[done] = stall_poll_thread_create(tids[i]);
		done += merged[done] != NULL; // without memory the next pass finds it
	}
	for (; old < process->count; old++) {
		ended(arg, process->threads[old]);
		stall_poll_thread_destroy(reader, process->threads[old]);
	}
	free(process->threads);
	process->threads = merged;
	process->count = done;
	return NULL;
}

struct stall_error *stall_poll_process_list(struct stall_poll_reader *reader,
					    struct stall_poll_process *process, size_t max,
					    stall_poll_ended_fn ended, void *arg, size_t *ret_over)
{
	_cleanup_free_ pid_t *tids = NULL;
	size_t count = 0;
	struct stall_error *err =
		stall_target_tids(&process->target, STALL_MAX_TIDS, &tids, &count);

	*ret_over = 0;
	if (err)
		return err;
	if (count > max) {
		*ret_over = count - max;
		count = max;
	}
	return merge(reader, process, tids, count, ended, arg);
}

static void nobody_ended(void *arg, struct stall_poll_thread *thread)
{
}

// Whether its waits may be seen at all: the same right as to trace it.
static struct stall_error *check_access(const struct stall_poll_process *process)
{
	struct stall_proc_syscall call;
	struct stall_error *err =
		stall_proc_syscall_read(&process->target, process->target.reader, &call);

	// Whichever thread that was: others report it.
	if (err && err->code == STALL_ERROR_NO_PROCESS) {
		stall_error_destroy(err);
		return NULL;
	}
	return err;
}

struct stall_error *stall_poll_process_create(struct stall_poll_reader *reader, pid_t pid,
					      size_t max, size_t *ret_over,
					      struct stall_poll_process **ret)
{
	struct stall_poll_process *process = calloc(1, sizeof(*process));

	if (!process)
		return &stall_enomem;
	process->task = -1;
	struct stall_error *err = stall_target_init(&process->target, pid);
	if (err) {
		free(process);
		return err;
	}
	process->task = stall_proc_open_tasks(&process->target);
	if (process->task < 0)
		err = stall_error_os(errno, "cannot open /proc/%d/task", pid);
	if (!err)
		err = check_access(process);
	if (!err)
		err = stall_poll_process_list(reader, process, max, nobody_ended, NULL, ret_over);
	if (err) {
		stall_poll_process_destroy(reader, process);
		return err;
	}
	read_image(process, &process->image);
	*ret = process;
	return NULL;
}

void stall_poll_process_destroy(struct stall_poll_reader *reader,
				struct stall_poll_process *process)
{
	if (!process)
		return;
	for (size_t i = 0; i < process->count; i++)
		stall_poll_thread_destroy(reader, process->threads[i]);
	free(process->threads);
	stall_target_deinit(&process->target);
	if (process->task >= 0)
		close(process->task);
	free(process);
}

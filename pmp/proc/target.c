// SPDX-License-Identifier: Apache-2.0
#include "proc/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/proc_file.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static struct stall_error *process_ended(pid_t pid)
{
	return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended", pid);
}

#define PF_KTHREAD 0x00200000 // include/linux/sched.h

// A zombie leader with other threads left is a live process (its main thread called pthread_exit).
static bool has_ended(const struct stall_proc_stat *fields)
{
	return (fields->state == 'Z' && fields->threads <= 1) || fields->state == 'X';
}

// A TID opens as /proc/TID too, though it is not listed there: of which process it is.
static struct stall_error *check_is_leader(const struct stall_target *target)
{
	char text[4096];
	int tgid = 0;

	if (stall_proc_read(target, "status", text, sizeof(text)) < 0)
		return stall_error_os(errno, "cannot read /proc/%d/status", target->pid);
	const char *field = stall_proc_field(text, "\nTgid:");
	if (!field || sscanf(field, "%d", &tgid) != 1)
		return stall_error_create(STALL_ERROR_FORMAT, "/proc/%d/status has no Tgid",
					  target->pid);
	if (tgid != target->pid)
		return stall_error_create(STALL_ERROR_USAGE,
					  "%d is a thread of process %d: use --pid %d", target->pid,
					  tgid, tgid);
	return NULL;
}

// A folder of /proc/PID. NULL with errno.
static DIR *open_folder(int procfd, const char *name)
{
	int fd = openat(procfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (fd >= 0 && !dir) {
		close(fd);
		errno = ENOMEM; // the only reason
	}
	return dir;
}

// A thread that still exists when the leader has ended: 0 when there is none.
static pid_t find_survivor(const struct stall_target *target)
{
	_cleanup_closedir_ DIR *dir = open_folder(target->procfd, "task");

	if (!dir)
		return 0;
	for (struct dirent *entry; (entry = readdir(dir));) {
		pid_t tid = atoi(entry->d_name);
		struct stall_proc_stat fields;

		if (tid > 0 && tid != target->pid &&
		    stall_proc_stat_read(target, tid, &fields) == 0 && fields.state != 'Z' &&
		    fields.state != 'X')
			return tid;
	}
	return 0;
}

#define MAX_SURVIVORS 8 // that end while they are opened

// /proc/TID of a living thread of the process, -1: there is none. A thread may end before it is
// opened, and its number be another process's by then; what is open stays that thread's.
static int open_survivor(const struct stall_target *target, pid_t *ret_tid)
{
	char path[32];

	for (int i = 0; i < MAX_SURVIVORS; i++) {
		*ret_tid = find_survivor(target);
		if (!*ret_tid)
			break;
		snprintf(path, sizeof(path), "/proc/%d", *ret_tid);
		struct stall_target thread = *target;
		thread.procfd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
		struct stall_error *err =
			thread.procfd < 0 ? process_ended(*ret_tid) : check_is_leader(&thread);
		if (!err)
			return thread.procfd;
		stall_error_destroy(err);
		if (thread.procfd >= 0)
			close(thread.procfd);
	}
	return -1;
}

// A zombie leader has no memory; /proc/TID of any other thread shows all that /proc/PID would.
static struct stall_error *choose_reader(struct stall_target *target)
{
	pid_t tid;
	int procfd = open_survivor(target, &tid);
	struct stall_error *err =
		procfd < 0 ? process_ended(target->pid) : stall_target_check(target);

	if (err) {
		if (procfd >= 0)
			close(procfd);
		return err;
	}
	close(target->procfd);
	target->procfd = procfd;
	target->reader = tid;
	return NULL;
}

struct stall_error *stall_target_init(struct stall_target *target, pid_t pid)
{
	char path[32];
	struct stall_proc_stat fields, again;
	int rc;

	if (pid <= 0)
		return stall_error_create(STALL_ERROR_USAGE, "%d is not a process id", pid);
	snprintf(path, sizeof(path), "/proc/%d", pid);
	_cleanup_close_ int procfd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stall_target opened = {.pid = pid, .pidfd = -1, .procfd = procfd, .reader = pid};
	if (procfd < 0 && errno == ENOENT)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "no process %d", pid);
	if (procfd < 0)
		return stall_error_os(errno, "cannot open %s", path);
	rc = stall_proc_stat_read(&opened, pid, &fields);
	if (rc == ENOENT || rc == ESRCH || (!rc && has_ended(&fields)))
		return process_ended(pid);
	if (rc)
		return stall_error_os(rc, "cannot read %s/stat", path);
	if (fields.flags & PF_KTHREAD)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"process %d is a thread of the kernel: it has no stack of its own to show",
			pid);
	struct stall_error *err = check_is_leader(&opened);
	if (err)
		return err;
	// pidfd_open takes a number; if procfd can still be read afterwards, the number had not
	// been reused.
	_cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0 && errno != ENOSYS && errno != EPERM)
		return errno == ESRCH
			       ? process_ended(pid)
			       : stall_error_os(errno, "cannot hold process %d by pidfd_open", pid);
	if (stall_proc_stat_read(&opened, pid, &again) || again.start_time != fields.start_time)
		return process_ended(pid);
	opened.pidfd = pidfd;
	opened.start_time = fields.start_time;
	pidfd = procfd = -1;
	if (fields.state == 'Z') {
		err = choose_reader(&opened);
		if (err) {
			stall_target_deinit(&opened);
			return err;
		}
	}
	*target = opened;
	return NULL;
}

void stall_target_deinit(struct stall_target *target)
{
	if (target->pidfd >= 0)
		close(target->pidfd);
	if (target->procfd >= 0)
		close(target->procfd);
	target->pidfd = target->procfd = -1;
}

struct stall_error *stall_target_check(const struct stall_target *target)
{
	struct pollfd pollfd = {.fd = target->pidfd, .events = POLLIN};
	struct stall_proc_stat fields;

	// A pidfd reads as ready once the whole thread group has exited.
	if (target->pidfd >= 0)
		return poll(&pollfd, 1, 0) > 0 ? process_ended(target->pid) : NULL;
	// The directory belongs to one process: its files never show a later one.
	if (stall_proc_stat_read(target, target->reader, &fields) || has_ended(&fields))
		return process_ended(target->pid);
	return NULL;
}

static int compare_pids(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

struct stall_error *stall_target_tids(const struct stall_target *target, size_t max, pid_t **ret,
				      size_t *ret_count)
{
	_cleanup_free_ pid_t *tids = NULL;
	size_t count = 0, capacity = 0;
	_cleanup_closedir_ DIR *dir = open_folder(target->procfd, "task");

	if (!dir && (errno == ENOENT || errno == ESRCH))
		return process_ended(target->pid);
	if (!dir)
		return stall_error_os(errno, "cannot open /proc/%d/task", target->pid);
	for (struct dirent *entry; (entry = readdir(dir));) {
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (count == max)
			return stall_error_create(
				STALL_ERROR_LIMIT,
				"process %d has more than %zu threads: raise --max-threads",
				target->pid, max);
		if (!stall_array_reserve(&tids, count, 1, &capacity))
			return &stall_enomem;
		tids[count++] = atoi(entry->d_name);
	}
	if (count == 0)
		return process_ended(target->pid);
	qsort(tids, count, sizeof(*tids), compare_pids);
	*ret = no_cleanup_ptr(tids);
	*ret_count = count;
	return NULL;
}

size_t stall_target_thread_count(pid_t pid)
{
	char path[32];
	struct stat status;

	// One link for each thread, and two of its own.
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	return stat(path, &status) == 0 && status.st_nlink > 2 ? status.st_nlink - 2 : 0;
}

struct stall_error *stall_target_descriptors(const struct stall_target *target, size_t max,
					     int32_t **ret, size_t *ret_count)
{
	_cleanup_free_ int32_t *numbers = NULL;
	size_t count = 0, capacity = 0;
	_cleanup_closedir_ DIR *dir = open_folder(target->procfd, "fd");

	if (!dir && (errno == ENOENT || errno == ESRCH))
		return process_ended(target->pid);
	if (!dir)
		return stall_error_os(errno, "cannot read which files process %d has open",
				      target->pid);
	for (struct dirent *entry; count < max && (entry = readdir(dir));) {
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		if (!stall_array_reserve(&numbers, count, 1, &capacity))
			return &stall_enomem;
		numbers[count++] = atoi(entry->d_name);
	}
	*ret = no_cleanup_ptr(numbers);
	*ret_count = count;
	return NULL;
}

bool stall_process_is_visible(pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	return access(path, R_OK) == 0;
}

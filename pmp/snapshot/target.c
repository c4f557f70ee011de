// SPDX-License-Identifier: Apache-2.0
#include "snapshot/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static struct stall_error *process_ended(pid_t pid)
{
	return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended", pid);
}

#define PF_KTHREAD 0x00200000 // include/linux/sched.h

// /proc/PID/stat identifies a target. The name may hold blanks and parentheses, so fields are
// counted from the last ')'. (Linux man-pages, proc_pid_stat(5).)
struct stat_fields {
	char state;
	unsigned long flags;
	long threads;
	uint64_t start_time;
};

static int parse_stat(char *text, struct stat_fields *ret)
{
	char *p = strrchr(text, ')');
	struct stat_fields fields;

	if (!p)
		return EINVAL;
	// 3 state, 9 flags, 20 num_threads, 22 starttime
	if (sscanf(p + 1,
		   " %c %*s %*s %*s %*s %*s %lu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s "
		   "%" SCNu64,
		   &fields.state, &fields.flags, &fields.threads, &fields.start_time) != 4)
		return EINVAL;
	*ret = fields;
	return 0;
}

// task/PID/stat, since the kernel walks over all threads to sum up times for the PID/stat above it
// (do_task_stat, fs/proc/array.c).
static int read_stat(int procfd, pid_t tid, struct stat_fields *ret)
{
	char text[1024], path[32];

	snprintf(path, sizeof(path), "task/%d/stat", tid);
	_cleanup_close_ int fd = openat(procfd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	if (n < 0)
		return errno;
	text[n] = 0;
	return parse_stat(text, ret);
}

// A zombie leader with other threads left is a live process (its main thread called pthread_exit).
static bool has_ended(const struct stat_fields *fields)
{
	return (fields->state == 'Z' && fields->threads <= 1) || fields->state == 'X';
}

// A TID opens as /proc/TID too, though it is not listed there.
static struct stall_error *check_is_leader(int procfd, pid_t pid)
{
	char text[4096];
	_cleanup_close_ int fd = openat(procfd, "status", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return stall_error_os(errno, "cannot read /proc/%d/status", pid);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	if (n < 0)
		return stall_error_os(errno, "cannot read /proc/%d/status", pid);
	text[n] = 0;
	char *line = strstr(text, "\nTgid:");
	int tgid = 0;
	if (!line || sscanf(line, "\nTgid: %d", &tgid) != 1)
		return stall_error_create(STALL_ERROR_FORMAT, "/proc/%d/status has no Tgid", pid);
	if (tgid != pid)
		return stall_error_create(STALL_ERROR_USAGE,
					  "%d is a thread of process %d: use --pid %d", pid, tgid,
					  tgid);
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
static pid_t find_survivor(int procfd, pid_t pid)
{
	_cleanup_closedir_ DIR *dir = open_folder(procfd, "task");

	if (!dir)
		return 0;
	for (struct dirent *entry; (entry = readdir(dir));) {
		pid_t tid = atoi(entry->d_name);
		struct stat_fields fields;

		if (tid > 0 && tid != pid && read_stat(procfd, tid, &fields) == 0 &&
		    fields.state != 'Z' && fields.state != 'X')
			return tid;
	}
	return 0;
}

// A zombie leader has no memory; /proc/TID of any other thread shows all that /proc/PID would.
static struct stall_error *choose_reader(struct stall_target *target)
{
	char path[32];
	pid_t tid = find_survivor(target->procfd, target->pid);

	snprintf(path, sizeof(path), "/proc/%d", tid);
	int procfd = tid ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
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
	struct stat_fields fields, again;
	int rc;

	if (pid <= 0)
		return stall_error_create(STALL_ERROR_USAGE, "%d is not a process id", pid);
	snprintf(path, sizeof(path), "/proc/%d", pid);
	_cleanup_close_ int procfd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (procfd < 0 && errno == ENOENT)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "no process %d", pid);
	if (procfd < 0)
		return stall_error_os(errno, "cannot open %s", path);
	rc = read_stat(procfd, pid, &fields);
	if (rc == ENOENT || rc == ESRCH || (!rc && has_ended(&fields)))
		return process_ended(pid);
	if (rc)
		return stall_error_os(rc, "cannot read %s/stat", path);
	if (fields.flags & PF_KTHREAD)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"process %d is a thread of the kernel: it has no stack of its own to show",
			pid);
	struct stall_error *err = check_is_leader(procfd, pid);
	if (err)
		return err;
	// pidfd_open takes a number; if procfd can still be read afterwards, the number had not
	// been reused.
	_cleanup_close_ int pidfd = syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0 && errno != ENOSYS && errno != EPERM)
		return errno == ESRCH
			       ? process_ended(pid)
			       : stall_error_os(errno, "cannot hold process %d by pidfd_open", pid);
	if (read_stat(procfd, pid, &again) || again.start_time != fields.start_time)
		return process_ended(pid);
	struct stall_target opened = {
		.pid = pid,
		.pidfd = pidfd,
		.procfd = procfd,
		.reader = pid,
		.start_time = fields.start_time,
	};
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
	struct stat_fields fields;

	// A pidfd reads as ready once the whole thread group has exited.
	if (target->pidfd >= 0)
		return poll(&pollfd, 1, 0) > 0 ? process_ended(target->pid) : NULL;
	// The directory belongs to one process: its files never show a later one.
	if (read_stat(target->procfd, target->reader, &fields) || has_ended(&fields))
		return process_ended(target->pid);
	return NULL;
}

void stall_target_root(const struct stall_target *target, char *ret, size_t size)
{
	ssize_t n = readlinkat(target->procfd, "root", ret, size - 1);

	ret[n > 1 ? n : 0] = 0; // "/" is the same as none
}

const char *stall_path_in_root(const char *path, const char *root)
{
	size_t length = strlen(root);

	return length && !strncmp(path, root, length) && path[length] == '/' ? path + length : path;
}

static int compare_pids(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

DIR *stall_target_open_files(const struct stall_target *target)
{
	return open_folder(target->procfd, "fd");
}

int stall_next_open_file(DIR *dir)
{
	for (struct dirent *entry; (entry = readdir(dir));)
		if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
			return atoi(entry->d_name);
	return -1;
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
		if (count == capacity) {
			capacity = capacity ? capacity * 2 : 256;
			pid_t *grown = reallocarray(tids, capacity, sizeof(*tids));
			if (!grown)
				return &stall_enomem;
			tids = grown;
		}
		tids[count++] = atoi(entry->d_name);
	}
	if (count == 0)
		return process_ended(target->pid);
	qsort(tids, count, sizeof(*tids), compare_pids);
	*ret = no_cleanup_ptr(tids);
	*ret_count = count;
	return NULL;
}

// SPDX-License-Identifier: Apache-2.0
#include "proc/proc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proc/paths.h"
#include "proc/read_child.h"

// By their last name but for "fdinfo/N": fs/proc/base.c and array.c take no lock for them that a disk
// can hold up (mmap_lock), and touch neither memory nor files of the process.
static bool never_waits(const char *name)
{
	static const char *const names[] = {"stat",    "status",    "io",    "comm",
					    "syscall", "wchan",	    "stack", "schedstat",
					    "limits",  "mountinfo", "cgroup"};
	const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;

	if (!strncmp(name, "fdinfo/", strlen("fdinfo/")))
		return true;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(last, names[i]))
			return true;
	return false;
}

static ssize_t read_now(int procfd, const char *name, char *ret, size_t size)
{
	_cleanup_close_ int fd = openat(procfd, name, O_RDONLY | O_CLOEXEC);
	size_t used = 0;

	if (fd < 0)
		return -1;
	while (used < size) {
		ssize_t got = read(fd, ret + used, size - used);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		used += (size_t)got;
	}
	return (ssize_t)used;
}

ssize_t stall_proc_read(const struct stall_target *target, const char *name, char *ret, size_t size)
{
	char own[64];
	ssize_t used;

	if (!target) {
		snprintf(own, sizeof(own), "/proc/self/%s", name);
		used = read_now(AT_FDCWD, own, ret, size - 1);
	} else if (never_waits(name)) {
		used = read_now(target->procfd, name, ret, size - 1);
	} else {
		used = (ssize_t)stall_read_child_text(target, name, ret, size - 1);
	}
	ret[used > 0 ? used : 0] = '\0';
	return used;
}

ssize_t stall_proc_read_thread(const struct stall_target *target, pid_t tid, const char *name,
			       char *ret, size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "task/%d/%s", tid, name);
	return stall_proc_read(target, path, ret, size);
}

void stall_proc_root(const struct stall_target *target, char *ret, size_t size)
{
	// "/" is the same as none.
	if (!stall_proc_link(target, "root", ret, size) || !ret[1])
		ret[0] = '\0';
}

bool stall_proc_link(const struct stall_target *target, const char *name, char *ret, size_t size)
{
	char own[64];
	ssize_t length;

	snprintf(own, sizeof(own), "/proc/self/%s", name);
	length = target ? readlinkat(target->procfd, name, ret, size - 1)
			: readlink(own, ret, size - 1);

	ret[length > 0 ? length : 0] = '\0';
	return length > 0;
}

bool stall_proc_link_inside(const struct stall_target *target, const char *name, char *ret,
			    size_t size)
{
	char path[PATH_MAX + 16], root[PATH_MAX];

	if (!stall_proc_link(target, name, path, sizeof(path)))
		return false;
	stall_proc_root(target, root, sizeof(root));
	snprintf(ret, size, "%s", stall_path_in_root(path, root));
	return true;
}

int stall_proc_open_tasks(const struct stall_target *target)
{
	return openat(target->procfd, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool stall_proc_has_thread(const struct stall_target *target, pid_t tid)
{
	char path[32];

	snprintf(path, sizeof(path), "task/%d", tid);
	return faccessat(target->procfd, path, F_OK, 0) == 0;
}

uint64_t stall_proc_pid_namespace(const struct stall_target *target)
{
	struct stat st;
	int rc =
		target ? fstatat(target->procfd, "ns/pid", &st, 0) : stat("/proc/self/ns/pid", &st);

	return rc == 0 ? st.st_ino : 0;
}

int stall_proc_stat_read(const struct stall_target *target, pid_t tid, struct stall_proc_stat *ret)
{
	char text[1024];

	if (stall_proc_read_thread(target, tid, "stat", text, sizeof(text)) < 0)
		return errno;
	return stall_proc_stat_parse(text, ret) ? 0 : EINVAL;
}

const char *stall_proc_field(const char *text, const char *name)
{
	const char *found = strstr(text, name);

	return found ? found + strlen(name) : NULL;
}

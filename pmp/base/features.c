// SPDX-License-Identifier: Apache-2.0
#include "base/features.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/privileges.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static struct stall_error *check_pidfd(void)
{
	_cleanup_close_ int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	if (fd >= 0)
		return NULL;
	return stall_error_create(STALL_ERROR_UNSUPPORTED,
				  "no pidfd_open here (%s): processes are held by their /proc "
				  "directory; a newer kernel has it",
				  strerror(errno));
}

// Of another process: it is always allowed for the own one.
static ssize_t read_child(const void *address, void *buf, size_t size)
{
	struct iovec local = {buf, size}, remote = {(void *)address, size};
	pid_t child = stall_idle_child_create();

	if (child < 0)
		return -1;
	ssize_t n = process_vm_readv(child, &local, 1, &remote, 1, 0);
	stall_idle_child_destroy(child);
	return n;
}

static struct stall_error *check_readv(void)
{
	static const char known[] = "stallscope";
	char copy[sizeof(known)] = "";

	if (read_child(known, copy, sizeof(copy)) == sizeof(copy) && !strcmp(copy, known))
		return NULL;
	return stall_error_create(STALL_ERROR_UNSUPPORTED,
				  "process_vm_readv does not read another process (%s), "
				  "/proc/PID/mem is slower; allow it in the seccomp filter, or "
				  "build the kernel with CONFIG_CROSS_MEMORY_ATTACH",
				  strerror(errno));
}

static struct stall_error *check_map_files(void)
{
	_cleanup_close_ int maps = open("/proc/self/map_files", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = maps < 0 ? NULL : opendir("/proc/self/map_files");
	int errnum = errno;

	if (dir) {
		struct dirent *entry;
		do {
			entry = readdir(dir);
		} while (entry && entry->d_name[0] == '.');
		_cleanup_close_ int fd =
			entry ? openat(maps, entry->d_name, O_PATH | O_CLOEXEC) : -1;
		errnum = errno;
		closedir(dir);
		if (fd >= 0)
			return NULL;
	}
	return stall_error_create(
		STALL_ERROR_PERMISSION,
		"files of deleted or upgraded programs cannot be opened through "
		"/proc/PID/map_files (%s), which takes CAP_CHECKPOINT_RESTORE; %s",
		strerror(errnum), STALL_CAPABILITIES_ADVICE);
}

static struct stall_error *check_perf(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_TASK_CLOCK,
		.sample_period = 1000000,
		.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_REGS_USER |
			       PERF_SAMPLE_STACK_USER,
		.sample_regs_user = 1,
		.sample_stack_user = 4096,
		.disabled = 1,
		.exclude_callchain_user = 1,
	};
	_cleanup_close_ int fd =
		(int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd >= 0)
		return NULL;
	return stall_error_create(STALL_ERROR_PERMISSION,
				  "threads on a CPU cannot be sampled by perf_event_open with "
				  "registers and stack (%s), which takes CAP_PERFMON; %s",
				  strerror(errno), stall_perf_advice());
}

static struct stall_error *check_capabilities(void)
{
	static const enum stall_capability wanted[] = {STALL_CAP_BPF, STALL_CAP_PERFMON,
						       STALL_CAP_SYS_PTRACE,
						       STALL_CAP_CHECKPOINT_RESTORE};
	char missing[128];

	stall_missing_capabilities(wanted, sizeof(wanted) / sizeof(wanted[0]), missing,
				   sizeof(missing));
	if (!missing[0])
		return NULL;
	return stall_error_create(STALL_ERROR_PERMISSION, "missing: %s; %s", missing,
				  STALL_CAPABILITIES_ADVICE);
}

// A file of a thread of another process. Returns 0 or an errno.
static int read_of_child(pid_t child, const char *name, char *text, size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", child, child, name);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
	int errnum = n < 0 ? errno : 0;
	text[n < 0 ? 0 : n] = 0;
	return errnum;
}

static struct stall_error *check_polling(void)
{
	char text[512];
	pid_t child = stall_idle_child_create();
	int errnum = child < 0 ? EAGAIN : read_of_child(child, "syscall", text, sizeof(text));

	if (child >= 0)
		stall_idle_child_destroy(child);
	if (!errnum)
		return NULL;
	return stall_error_create(
		errnum == EACCES || errnum == EPERM ? STALL_ERROR_PERMISSION
						    : STALL_ERROR_UNSUPPORTED,
		"/proc/PID/task/TID/syscall of another process cannot be read (%s): without wait "
		"programs no wait is seen; %s",
		strerror(errnum),
		errnum == EACCES || errnum == EPERM
			? STALL_CAPABILITIES_ADVICE
			: "mount /proc, take a kernel that has the file");
}

const struct stall_feature stall_features[] = {
	{"capabilities", check_capabilities}, {"lockdown", stall_lockdown_check},
	{"yama", stall_yama_check},	      {"pidfd", check_pidfd},
	{"process-vm-readv", check_readv},    {"wait-polling", check_polling},
	{"map-files", check_map_files},	      {"perf-events", check_perf},
};
const size_t stall_feature_count = sizeof(stall_features) / sizeof(stall_features[0]);

// SPDX-License-Identifier: Apache-2.0
#include "base/privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"

struct stall_capability_sets stall_capabilities_read(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {};

	if (syscall(SYS_capget, &header, data) < 0)
		return (struct stall_capability_sets){};
	return (struct stall_capability_sets){
		.effective = (uint64_t)data[1].effective << 32 | data[0].effective,
		.permitted = (uint64_t)data[1].permitted << 32 | data[0].permitted,
	};
}

bool stall_capabilities_write(const struct stall_capability_sets *sets)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	const struct __user_cap_data_struct data[2] = {
		{.effective = (uint32_t)sets->effective, .permitted = (uint32_t)sets->permitted},
		{.effective = (uint32_t)(sets->effective >> 32),
		 .permitted = (uint32_t)(sets->permitted >> 32)},
	};

	return syscall(SYS_capset, &header, data) == 0;
}

bool stall_has_capability(enum stall_capability capability)
{
	uint64_t wanted = UINT64_C(1) << capability;

	if (capability >= STALL_CAP_PERFMON)
		wanted |= STALL_CAPABILITY(SYS_ADMIN);
	return stall_capabilities_read().effective & wanted;
}

bool stall_has_rights_of_file(void)
{
	return getauxval(AT_SECURE);
}

static const char *capability_name(enum stall_capability capability)
{
	switch (capability) {
	case STALL_CAP_SYS_PTRACE:
		return "CAP_SYS_PTRACE";
	case STALL_CAP_SYS_ADMIN:
		return "CAP_SYS_ADMIN";
	case STALL_CAP_PERFMON:
		return "CAP_PERFMON";
	case STALL_CAP_BPF:
		return "CAP_BPF";
	case STALL_CAP_CHECKPOINT_RESTORE:
		return "CAP_CHECKPOINT_RESTORE";
	default: // no feature needs it
		return "?";
	}
}

void stall_missing_capabilities(const enum stall_capability *wanted, size_t count, char *ret,
				size_t size)
{
	ret[0] = 0;
	for (size_t i = 0; i < count; i++) {
		size_t used = strlen(ret);

		if (!stall_has_capability(wanted[i]))
			snprintf(ret + used, size - used, "%s%s", used ? ", " : "",
				 capability_name(wanted[i]));
	}
}

static int perf_paranoid(void)
{
	_cleanup_fclose_ FILE *file = fopen("/proc/sys/kernel/perf_event_paranoid", "re");
	int level;

	return file && fscanf(file, "%d", &level) == 1 ? level : 0;
}

const char *stall_perf_advice(void)
{
	// Kernels of Debian and Ubuntu require CAP_SYS_ADMIN above 2; other kernels do not have
	// such values.
	if (perf_paranoid() > 2 && !stall_has_capability(STALL_CAP_SYS_ADMIN))
		return "sysctl kernel.perf_event_paranoid=2 (above that, kernels of Debian and "
		       "Ubuntu take CAP_SYS_ADMIN), and CAP_PERFMON, or run it as root";
	return STALL_CAPABILITIES_ADVICE;
}

// '0' where the kernel has no Yama.
static char read_scope(void)
{
	_cleanup_close_ int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
	char scope;

	return fd >= 0 && read(fd, &scope, 1) == 1 ? scope : '0';
}

static struct stall_error *refuses_all(char scope)
{
	if (scope != '3')
		return NULL;
	return stall_error_create(
		STALL_ERROR_PERMISSION,
		"kernel.yama.ptrace_scope is 3, so reading other processes is refused to "
		"everybody; "
		"set it lower and reboot, or start the server with stallscope run and use the "
		"backend inproc");
}

struct stall_error *stall_yama_refuses_all(void)
{
	return refuses_all(read_scope());
}

struct stall_error *stall_yama_check(void)
{
	char scope = read_scope();
	struct stall_error *err = refuses_all(scope);

	if (err || scope == '0' || stall_has_capability(STALL_CAP_SYS_PTRACE))
		return err;
	return stall_error_create(
		STALL_ERROR_PERMISSION,
		"kernel.yama.ptrace_scope is %c, so reading other processes takes "
		"CAP_SYS_PTRACE; %s",
		scope, STALL_CAPABILITIES_ADVICE);
}

struct stall_error *stall_lockdown_check(void)
{
	char modes[128]; // "none integrity [confidentiality]"
	// No file: no lockdown in this kernel, or securityfs is not mounted.
	_cleanup_close_ int fd = open("/sys/kernel/security/lockdown", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, modes, sizeof(modes) - 1);

	if (n < 0)
		return NULL;
	modes[n] = 0;
	if (!strstr(modes, "[confidentiality]"))
		return NULL;
	return stall_error_create(
		STALL_ERROR_PERMISSION,
		"the kernel is locked down for confidentiality, so BPF programs and perf cannot "
		"read it; boot with lockdown=integrity, or use the backend proc");
}

// Before Linux 5.8, and in containers that were given it alone, SYS_ADMIN stands for these.
#define IN_SYS_ADMIN                                                                               \
	(STALL_CAPABILITY(PERFMON) | STALL_CAPABILITY(BPF) | STALL_CAPABILITY(CHECKPOINT_RESTORE))

// The kernel counts the buffers of perf events against it; BPF maps too, before Linux 5.11.
static bool may_lock_memory(void)
{
	const struct rlimit infinity = {RLIM_INFINITY, RLIM_INFINITY};

	return setrlimit(RLIMIT_MEMLOCK, &infinity) == 0;
}

static uint64_t needed_capabilities(const struct stall_privileges *privileges)
{
	uint64_t wanted = STALL_CAPABILITY(DAC_READ_SEARCH);

	// No worker, and no file but /proc and a record of its own.
	if (privileges->pokes)
		return STALL_CAPABILITY(SYS_PTRACE) |
		       (privileges->opens_programs ? STALL_CAPABILITY(DAC_READ_SEARCH) : 0) |
		       (privileges->opens_memory ? STALL_CAPABILITY(DAC_OVERRIDE) : 0);
	// The worker becomes a user of its own, is made again where a file has killed it, and is
	// killed where it is late.
	if (geteuid() == 0)
		wanted |= STALL_CAPABILITY(SETUID) | STALL_CAPABILITY(SETGID) |
			  STALL_CAPABILITY(KILL);
	if (privileges->reads_processes) {
		wanted |= IN_SYS_ADMIN | STALL_CAPABILITY(SYS_PTRACE) | STALL_CAPABILITY(SYSLOG);
		if (!may_lock_memory())
			wanted |= STALL_CAPABILITY(IPC_LOCK);
	}
	if (privileges->opens_programs)
		wanted |= STALL_CAPABILITY(SYS_PTRACE);
	if (privileges->asks_as_owner)
		wanted |= STALL_CAPABILITY(FOWNER);
	if (privileges->stops_threads)
		wanted |= STALL_CAPABILITY(SYS_NICE);
	return wanted;
}

static bool is_refused(const struct perf_event_attr *attr)
{
	_cleanup_close_ int fd =
		(int)syscall(SYS_perf_event_open, attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 && (errno == EACCES || errno == EPERM);
}

// Ubuntu's kernels require SYS_ADMIN for any event where kernel.perf_event_paranoid is above 2, as
// it is there by default. Tried with one of this thread, by a clock that every machine has.
static bool are_perf_events_refused(void)
{
	const struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_TASK_CLOCK,
		.disabled = 1,
		.exclude_kernel = 1,
	};

	return is_refused(&attr);
}

// So do all kernels since 2025 for uprobes (Linux commit ba677dbe77af, also in stable ones). Tried
// with an invalid path: the kernel checks the capability first.
static bool are_uprobes_refused(void)
{
	struct perf_event_attr attr = {.size = sizeof(attr), .config1 = (uintptr_t) ""};
	_cleanup_fclose_ FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "re");

	return type && fscanf(type, "%u", &attr.type) == 1 && is_refused(&attr);
}

static bool may_make_files(const char *folder)
{
	return faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0 ||
	       (errno != EACCES && errno != EPERM);
}

#define PATIENCE_MS 1000

// By a child: a disk that does not answer keeps who asks it. Then no more than is needed is kept.
static bool may_child_make_files(const char *folder)
{
	uint8_t may = 1;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return may_make_files(folder);
	_cleanup_close_ int from = fds[0], to = fds[1];
	struct pollfd polled = {.fd = from, .events = POLLIN};
	pid_t pid = fork();
	if (pid < 0)
		return may_make_files(folder);
	if (pid == 0) {
		// Who is left behind keeps no pipe of our caller open.
		stall_child_keep_only(&to, 1);
		may = may_make_files(folder);
		_exit(write(STALL_CHILD_FD, &may, 1) != 1);
	}
	if (poll(&polled, 1, PATIENCE_MS) > 0 && read(from, &may, 1) != 1)
		may = 1;
	stall_child_end(pid);
	return may;
}

// To be called without the capability.
static bool needs_sys_admin(const struct stall_privileges *privileges, uint64_t permitted)
{
	if (!privileges->reads_processes)
		return false;
	return (permitted & IN_SYS_ADMIN) != IN_SYS_ADMIN || are_perf_events_refused() ||
	       (privileges->sets_uprobes && are_uprobes_refused());
}

static bool write_sets(uint64_t effective, uint64_t permitted)
{
	return stall_capabilities_write(&(struct stall_capability_sets){effective, permitted});
}

static struct stall_error *keep(const struct stall_privileges *privileges)
{
	uint64_t permitted = stall_capabilities_read().permitted;
	uint64_t needed = needed_capabilities(privileges), kept = permitted & needed;

	// Root of a container: without this capability the kernel shows a process only to who has all
	// of that process's capabilities.
	if (!privileges->pokes && (needed & ~permitted & STALL_CAPABILITY(SYS_PTRACE)))
		kept = permitted;
	// This program executes no other, so the bounding set only limits what one could have.
	for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	// Try without the capability that would be kept for it.
	if (!write_sets(kept, permitted))
		return stall_error_os(errno, "cannot give up capabilities");
	if (needs_sys_admin(privileges, permitted))
		kept |= permitted & STALL_CAPABILITY(SYS_ADMIN);
	if (privileges->output_folder && !may_child_make_files(privileges->output_folder))
		kept |= permitted & STALL_CAPABILITY(DAC_OVERRIDE);
	if (!write_sets(kept, kept))
		return stall_error_os(errno, "cannot give up capabilities");
	return NULL;
}

struct stall_error *stall_privileges_reduce(const struct stall_privileges *privileges)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return stall_error_os(errno, "cannot give up new privileges");
	// A sandbox may forbid capset(2) to a process that has nothing to drop.
	return stall_capabilities_read().permitted ? keep(privileges) : NULL;
}

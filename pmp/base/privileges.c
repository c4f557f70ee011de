// SPDX-License-Identifier: Apache-2.0
#include "base/privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/capabilities.h"
#include "base/cleanup.h"

// Before Linux 5.8, and in containers that were given it alone, SYS_ADMIN stands for these.
#define IN_SYS_ADMIN                                                                               \
	(STALL_CAPABILITY(PERFMON) | STALL_CAPABILITY(BPF) | STALL_CAPABILITY(CHECKPOINT_RESTORE))

// The kernel counts the buffers of perf events against it; BPF maps too, before Linux 5.11.
static bool may_lock_memory(void)
{
	const struct rlimit infinity = {RLIM_INFINITY, RLIM_INFINITY};

	return setrlimit(RLIMIT_MEMLOCK, &infinity) == 0;
}

static uint64_t wanted_by(const struct stall_privileges *privileges)
{
	uint64_t wanted = STALL_CAPABILITY(DAC_READ_SEARCH);

	// The worker becomes nobody, is made again where a file has killed it, and is killed where
	// it is late.
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
	if (privileges->stops_threads)
		wanted |= STALL_CAPABILITY(SYS_NICE);
	return wanted;
}

static bool is_refused(const struct perf_event_attr *attr)
{
	_cleanup_close_ int fd =
		syscall(SYS_perf_event_open, attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 && (errno == EACCES || errno == EPERM);
}

// Ubuntu's kernels take SYS_ADMIN for any where kernel.perf_event_paranoid is above 2, as it is there
// by default. Tried with one of this thread, by a clock that every machine has.
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
// with a path that is none, which is looked at after the right.
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

// To be asked without the capability.
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
	uint64_t kept = permitted & wanted_by(privileges);

	// This program executes no other: the bounding set decides nothing but what one could have.
	for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	// What is tried is tried without the capability that would be kept for it.
	if (!write_sets(kept, permitted))
		return stall_error_os(errno, "cannot give up capabilities");
	if (needs_sys_admin(privileges, permitted))
		kept |= permitted & STALL_CAPABILITY(SYS_ADMIN);
	if (privileges->output_folder && !may_make_files(privileges->output_folder))
		kept |= permitted & STALL_CAPABILITY(DAC_OVERRIDE);
	if (!write_sets(kept, kept))
		return stall_error_os(errno, "cannot give up capabilities");
	return NULL;
}

struct stall_error *stall_privileges_reduce(const struct stall_privileges *privileges)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return stall_error_os(errno, "cannot give up new privileges");
	// A sandbox may forbid capset(2) to who has nothing to give up.
	return stall_capabilities_read().permitted ? keep(privileges) : NULL;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/kernel_policy.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/capabilities.h"
#include "base/cleanup.h"

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

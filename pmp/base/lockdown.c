// SPDX-License-Identifier: Apache-2.0
#include "base/lockdown.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

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

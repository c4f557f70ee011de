// SPDX-License-Identifier: Apache-2.0
#include "base/capabilities.h"

#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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
	default: // no feature asks for it
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
	// Kernels of Debian and Ubuntu take CAP_SYS_ADMIN where it is above 2, which no other has.
	if (perf_paranoid() > 2 && !stall_has_capability(STALL_CAP_SYS_ADMIN))
		return "sysctl kernel.perf_event_paranoid=2 (above that, kernels of Debian and "
		       "Ubuntu take CAP_SYS_ADMIN), and CAP_PERFMON, or run it as root";
	return STALL_CAPABILITIES_ADVICE;
}

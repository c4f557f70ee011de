// SPDX-License-Identifier: Apache-2.0
// Which capabilities this program has, and how to give it those it lacks.
#ifndef STALL_CAPABILITIES_H
#define STALL_CAPABILITIES_H

#include <stdbool.h>
#include <stddef.h>

// Bits of linux/capability.h; the headers of older systems lack the last three.
enum stall_capability {
	STALL_CAP_SYS_PTRACE = 19,
	STALL_CAP_SYS_ADMIN = 21,
	STALL_CAP_PERFMON = 38,		   // since Linux 5.8, before that SYS_ADMIN
	STALL_CAP_BPF = 39,		   // since Linux 5.8, before that SYS_ADMIN
	STALL_CAP_CHECKPOINT_RESTORE = 40, // since Linux 5.9, before that SYS_ADMIN
};

#define STALL_PROBE_CAPABILITIES "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore+ep"
#define STALL_MEND_CAPABILITIES                                                                    \
	"run it as root, or give it capabilities: setcap " STALL_PROBE_CAPABILITIES                \
	" stallscope-probe"

// SYS_ADMIN counts for PERFMON, BPF and CHECKPOINT_RESTORE, as it does for the kernel.
bool stall_has_capability(enum stall_capability capability);

// Names those that are missing, as "CAP_BPF, CAP_PERFMON"; "" where none is.
void stall_missing_capabilities(const enum stall_capability *wanted, size_t count, char *ret,
				size_t size);

#endif

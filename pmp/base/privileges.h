// SPDX-License-Identifier: Apache-2.0
// What this program may do: its capabilities, what the kernel's policy forbids, and the permanent
// dropping of the capabilities that a command does not use.
#ifndef STALL_PRIVILEGES_H
#define STALL_PRIVILEGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

// Bits of linux/capability.h; the headers of older systems lack the last three.
enum stall_capability {
	STALL_CAP_DAC_OVERRIDE = 1,
	STALL_CAP_DAC_READ_SEARCH = 2,
	STALL_CAP_FOWNER = 3,
	STALL_CAP_KILL = 5,
	STALL_CAP_SETGID = 6,
	STALL_CAP_SETUID = 7,
	STALL_CAP_IPC_LOCK = 14,
	STALL_CAP_SYS_PTRACE = 19,
	STALL_CAP_SYS_ADMIN = 21,
	STALL_CAP_SYS_NICE = 23,
	STALL_CAP_SYSLOG = 34,
	STALL_CAP_PERFMON = 38,		   // since Linux 5.8, before that SYS_ADMIN
	STALL_CAP_BPF = 39,		   // since Linux 5.8, before that SYS_ADMIN
	STALL_CAP_CHECKPOINT_RESTORE = 40, // since Linux 5.9, before that SYS_ADMIN
};

#define STALL_PROBE_CAPABILITIES "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore+ep"
#define STALL_CAPABILITIES_ADVICE                                                                  \
	"run it as root, or give it capabilities: setcap " STALL_PROBE_CAPABILITIES                \
	" stallscope-probe"

// Sets have one bit per capability.
#define STALL_CAPABILITY(name) (UINT64_C(1) << STALL_CAP_##name)

struct stall_capability_sets {
	uint64_t effective, permitted;
};

// Of this thread; none where the kernel refuses.
struct stall_capability_sets stall_capabilities_read(void);
// The inheritable set becomes empty. False and errno on failure.
bool stall_capabilities_write(const struct stall_capability_sets *sets);

// SYS_ADMIN counts for PERFMON, BPF and CHECKPOINT_RESTORE, as it does for the kernel.
bool stall_has_capability(enum stall_capability capability);

// Lists those that are missing, as "CAP_BPF, CAP_PERFMON"; "" where none is.
void stall_missing_capabilities(const enum stall_capability *wanted, size_t count, char *ret,
				size_t size);

// Whether the rights of this process are those of its file (capabilities, or set-user-ID) and not of who
// runs it: then it may read other processes, and neither write to them nor stop them.
bool stall_has_rights_of_file(void);

// What to do where perf_event_open was refused: an advice as STALL_CAPABILITIES_ADVICE.
const char *stall_perf_advice(void);

// Yama (kernel.yama.ptrace_scope) limits who may read another process, lockdown keeps even root
// from reading the kernel's memory.

// NULL, or the error that no process may read another one, not even as root, and what can be done.
struct stall_error *stall_yama_refuses_all(void);

// The same, or the error that this process may not.
struct stall_error *stall_yama_check(void);

// NULL, or the reason why BPF programs cannot read the kernel here and what can be done.
struct stall_error *stall_lockdown_check(void);

// What a command does, in addition to reading files and unwinding in a child without privileges.
struct stall_privileges {
	bool reads_processes;
	bool opens_programs; // and folders, that a path such as /proc/PID/exe may name
	bool asks_as_owner;  // what the kernel shows only to the owner of a file
	bool sets_uprobes;
	bool pokes;	   // changes a process, and nothing else
	bool opens_memory; // of it, for writing: another user's file, in which others may not write
	bool stops_threads;	   // in a child that raises its priority
	const char *output_folder; // where files are made; NULL: nowhere
};

// Call it before children are made, and after the steps that need more (stall_raise_priority()).
// docs/risks.md has a table of what is kept, and why. Nothing can be executed with privileges
// afterwards.
struct stall_error *stall_privileges_reduce(const struct stall_privileges *privileges);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "ebpf/bpf_features.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/privileges.h"
#include "ebpf/bpf_error.h"
#include "ebpf/denylist.h"
#include "ebpf/threads_loader.h"

#define USER64_CS 0x33 // __USER_CS, arch/x86/include/asm/segment.h

static struct stall_error *missing(const char *what, int errnum, const char *since)
{
	if (errnum == EPERM || errnum == EACCES)
		return stall_error_create(STALL_ERROR_PERMISSION, "%s: %s; %s", what,
					  strerror(errnum), STALL_CAPABILITIES_ADVICE);
	return stall_error_create(STALL_ERROR_UNSUPPORTED, "%s: %s; %s", what, strerror(errnum),
				  since);
}

static struct stall_error *check_known_good(void)
{
	return stall_denylist_check(STALL_DENY_TASK_STACK, false);
}

static struct stall_error *check_btf(void)
{
	return access(STALL_BTF_PATH, R_OK) == 0 ? NULL : stall_bpf_no_types(errno);
}

static void destroy_threadsp(struct stall_bpf_threads **threads)
{
	stall_bpf_threads_destroy(*threads);
}

// Runs the iterator on this very process.
static struct stall_error *run_on_self(struct stall_bpf_threads *threads,
				       struct stall_bpf_thread *ret)
{
	struct stall_bpf_records records = {};
	pid_t self = getpid();
	size_t at = 0;
	struct stall_error *err = stall_bpf_threads_set_targets(threads, &self, 1);

	if (!err)
		err = stall_bpf_threads_run(threads, &(struct stall_bpf_run){.max_bytes = SIZE_MAX},
					    &records);
	const struct stall_bpf_thread *record = err ? NULL : stall_bpf_records_next(&records, &at);
	if (record)
		*ret = *record;
	else if (!err)
		err = stall_error_create(STALL_ERROR_UNSUPPORTED,
					 "the BPF iterator does not show this process; is /proc "
					 "that of its pid namespace?");
	stall_bpf_records_deinit(&records);
	return err;
}

static struct stall_error *check_registers(void)
{
	_cleanup_(destroy_threadsp) struct stall_bpf_threads *threads = NULL;
	struct stall_bpf_thread record;
	struct stall_error *err = stall_bpf_threads_create(&threads);

	if (!err)
		err = run_on_self(threads, &record);
	if (err)
		return err;
	// A thread that reads the iterator is in read(2).
	if ((record.flags & STALL_BPF_REGS) && (record.regs[STALL_BPF_CS] & 0xffff) == USER64_CS &&
	    record.regs[STALL_BPF_ORIG_AX] == SYS_read)
		return NULL;
	return stall_error_create(
		STALL_ERROR_UNSUPPORTED,
		"bpf_task_pt_regs does not show the registers of user space; a newer kernel does");
}

static struct stall_error *check_pid_filter(void)
{
	_cleanup_(destroy_threadsp) struct stall_bpf_threads *threads = NULL;
	struct stall_bpf_thread record;
	struct stall_error *err = stall_bpf_threads_create(&threads);

	if (!err)
		err = run_on_self(threads, &record);
	if (err || stall_bpf_threads_is_limited(threads))
		return err;
	return stall_error_create(STALL_ERROR_UNSUPPORTED,
				  "the iterator cannot be limited to a process, so every capture "
				  "walks over all threads of the machine; a newer kernel can");
}

static struct stall_error *check_ring_buffer(void)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE); // it must be a multiple
	_cleanup_close_ int fd = bpf_map_create(BPF_MAP_TYPE_RINGBUF, NULL, 0, 0, page, NULL);

	return fd >= 0 ? NULL : missing("no BPF ring buffer", errno, "a newer kernel has it");
}

static int load_nothing(enum bpf_prog_type type)
{
	static const struct bpf_insn instructions[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
		{.code = BPF_JMP | BPF_EXIT},
	};

	return bpf_prog_load(type, "nothing", "Dual BSD/GPL", instructions, 2, NULL);
}

static struct stall_error *check_timer(void)
{
	struct stall_bpf_log log;
	// Of a type that needs only CAP_BPF, and may have timers.
	_cleanup_close_ int program = load_nothing(BPF_PROG_TYPE_SOCKET_FILTER);

	// libbpf treats a refusal as success.
	if (program < 0)
		return missing("cannot load a BPF program", errno,
			       "take a kernel with CONFIG_BPF_SYSCALL");
	stall_bpf_log_begin(&log);
	int rc = libbpf_probe_bpf_helper(BPF_PROG_TYPE_SOCKET_FILTER, BPF_FUNC_timer_init, NULL);
	stall_bpf_log_end(&log);
	if (rc == 1)
		return NULL;
	return missing("no BPF timers", rc < 0 ? -rc : EINVAL, "a newer kernel has them");
}

static struct stall_error *check_tracepoints(void)
{
	_cleanup_close_ int program = load_nothing(BPF_PROG_TYPE_RAW_TRACEPOINT);

	if (program < 0)
		return missing("cannot load a BPF program for tracepoints", errno,
			       "take a kernel with CONFIG_BPF_EVENTS");
	// One that fires rarely.
	_cleanup_close_ int fd = bpf_raw_tracepoint_open("sched_process_exec", program);
	return fd >= 0 ? NULL
		       : missing("cannot attach to tracepoints", errno,
				 "take a kernel with CONFIG_BPF_EVENTS");
}

static struct stall_error *check_uprobes(void)
{
	struct perf_event_attr attr = {.size = sizeof(attr)};
	_cleanup_fclose_ FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "re");
	char path[32];

	if (!type || fscanf(type, "%u", &attr.type) != 1)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"no uprobes in this kernel, so waits in the server's own functions are "
			"recognized by their stacks alone; take one with CONFIG_UPROBE_EVENTS");
	// A file of ours that nobody has mapped: no program's code is touched.
	_cleanup_close_ int file = memfd_create("uprobe", MFD_CLOEXEC);
	if (file < 0 || write(file, "\x90\x90\x90\x90", 4) != 4)
		return stall_error_os(errno, "cannot make a file to probe");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	attr.config1 = (uintptr_t)path;
	_cleanup_close_ int fd =
		syscall(SYS_perf_event_open, &attr, getpid(), -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd >= 0)
		return NULL;
	// CAP_PERFMON is not enough since Linux commit ba677dbe77af, of 2025.
	return stall_error_create(
		errno == EACCES || errno == EPERM ? STALL_ERROR_PERMISSION
						  : STALL_ERROR_UNSUPPORTED,
		"cannot set uprobes (%s), so waits in the server's own functions are "
		"recognized by their stacks alone; %s",
		strerror(errno),
		errno == EACCES || errno == EPERM
			? "run it as root: this kernel wants CAP_SYS_ADMIN for it"
			: "take a kernel with CONFIG_UPROBE_EVENTS");
}

const struct stall_feature stall_bpf_features[] = {
	{"kernel-known-good", check_known_good}, {"btf", check_btf},
	{"bpf-task-registers", check_registers}, {"bpf-iterator-pid", check_pid_filter},
	{"bpf-ring-buffer", check_ring_buffer},	 {"bpf-timer", check_timer},
	{"tracepoints", check_tracepoints},	 {"uprobes", check_uprobes},
};
const size_t stall_bpf_feature_count = sizeof(stall_bpf_features) / sizeof(stall_bpf_features[0]);

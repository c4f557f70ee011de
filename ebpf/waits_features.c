// SPDX-License-Identifier: Apache-2.0
// The requirements of the wait programs, one by one, each with what is lost without it and what is
// done instead.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/privileges.h"
#include "ebpf/async_loader.h"
#include "ebpf/bpf_error.h"
#include "ebpf/bpf_features.h"
#include "ebpf/waits_loader.h"

static void destroy_waitsp(struct stall_bpf_waits **waits)
{
	stall_bpf_waits_destroy(*waits);
}

// Small sizes: if these do not load, nothing does.
static struct stall_error *create(struct stall_bpf_waits **ret)
{
	struct stall_bpf_waits_options options;

	stall_bpf_waits_options_init(&options);
	options.max_threads = 64;
	options.max_keys = 64;
	options.ring_bytes = 4096;
	return stall_bpf_waits_create(&options, ret);
}

static struct stall_error *check_waits(void)
{
	_cleanup_(destroy_waitsp) struct stall_bpf_waits *waits = NULL;

	return create(&waits);
}

static struct stall_error *check_timer(void)
{
	_cleanup_(destroy_waitsp) struct stall_bpf_waits *waits = NULL;
	struct stall_error *err = create(&waits);

	if (err || stall_bpf_waits_has_timer(waits))
		return err;
	return stall_error_create(
		STALL_ERROR_UNSUPPORTED,
		"no BPF timer can be started: waits in flight are found from "
		"user space, a thousand times a second; a newer kernel has timers");
}

// `lost`: what is not seen without it, behind the name of the tracepoint.
static struct stall_error *refused(const char *tracepoint, const char *lost, int errnum,
				   const char *fix)
{
	bool forbidden = errnum == EPERM || errnum == EACCES;
	// The error of libbpf where the kernel's types lack it, or there are none.
	const char *why = errnum == ESRCH || errnum == ENOENT ? "the kernel's BTF does not know it"
							      : strerror(errnum);

	return stall_error_create(forbidden ? STALL_ERROR_PERMISSION : STALL_ERROR_UNSUPPORTED,
				  "the tracepoint %s cannot be had (%s): %s; %s", tracepoint, why,
				  lost, forbidden ? STALL_CAPABILITIES_ADVICE : fix);
}

// Loads and attaches an empty program, and removes it.
static int try_tracepoint(const char *name)
{
	static const struct bpf_insn nothing[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	LIBBPF_OPTS(bpf_prog_load_opts, opts, .expected_attach_type = BPF_TRACE_RAW_TP);
	struct stall_bpf_log log;

	stall_bpf_log_begin(&log);
	int type = libbpf_find_vmlinux_btf_id(name, BPF_TRACE_RAW_TP);
	stall_bpf_log_end(&log);
	if (type < 0)
		return -type;
	opts.attach_btf_id = type;
	_cleanup_close_ int program =
		bpf_prog_load(BPF_PROG_TYPE_TRACING, "nothing", "Dual BSD/GPL", nothing, 2, &opts);
	if (program < 0)
		return errno;
	_cleanup_close_ int link = bpf_raw_tracepoint_open(NULL, program);
	return link < 0 ? errno : 0;
}

static struct stall_error *check_tracepoints(void)
{
	static const char *const wanted[] = {"sys_enter", "sys_exit", "sched_process_exit",
					     "sched_process_exec", "sched_process_fork"};

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		int errnum = try_tracepoint(wanted[i]);
		if (errnum)
			return refused(
				wanted[i],
				"no wait is seen, captures on request are taken all the same",
				errnum,
				"take a kernel with CONFIG_FTRACE_SYSCALLS and "
				"CONFIG_DEBUG_INFO_BTF");
	}
	return NULL;
}

static struct stall_error *check_io_uring(void)
{
	const char *missing = STALL_URING_SUBMIT;
	int errnum = try_tracepoint(missing);

	if (errnum == ENOENT)
		errnum = try_tracepoint(STALL_URING_SUBMIT_BEFORE);
	if (!errnum) {
		missing = "io_uring_complete";
		errnum = try_tracepoint(missing);
	}
	return errnum ? refused(missing,
				"reads, writes and syncs by io_uring are not seen, all others are",
				errnum, "a newer kernel with CONFIG_IO_URING has it")
		      : NULL;
}

static struct stall_error *check_arrays(void)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	size_t page = sysconf(_SC_PAGESIZE);
	_cleanup_close_ int map =
		bpf_map_create(BPF_MAP_TYPE_ARRAY, "array", sizeof(int), page, 1, &opts);
	int errnum = errno;

	if (map >= 0) {
		void *data = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
		errnum = errno;
		if (data != MAP_FAILED) {
			munmap(data, page);
			return NULL;
		}
	}
	return stall_error_create(
		STALL_ERROR_UNSUPPORTED,
		"BPF arrays cannot be mapped into a program (%s): no wait is watched, captures on "
		"request are taken all the same; %s",
		strerror(errnum),
		errnum == EPERM ? STALL_CAPABILITIES_ADVICE : "a newer kernel can map them");
}

const struct stall_feature stall_waits_features[] = {
	{"wait-programs", check_waits},	   {"wait-tracepoints", check_tracepoints},
	{"wait-arrays", check_arrays},	   {"wait-timer", check_timer},
	{"wait-io-uring", check_io_uring},
};
const size_t stall_waits_feature_count =
	sizeof(stall_waits_features) / sizeof(stall_waits_features[0]);

// SPDX-License-Identifier: Apache-2.0
// Loads and attaches those wait programs that this kernel supports.
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ebpf/async_loader.h"
#include "ebpf/bpf_error.h"
#include "ebpf/call_cost.h"
#include "ebpf/kernel_types.h"
#include "ebpf/storage_loader.h"
#include "ebpf/uprobes_loader.h"
#include "ebpf/waits_attach.h"
#include "ebpf/waits_slots.h"
#include "ebpf/waits_state.h"

#define ALARM_BYTES (1u << 20)	 // room for some 3,000 waits in flight
#define THREAD_PLACES_PER_SLOT 4 // of the hash table of threads: it stays sparse
#define LEAST_THREAD_PLACES 64

// Of 37 KiB each. Where there are more than half as many CPUs, they share them: a CPU rarely needs
// one.
#define RECORDS_PER_CPU 2
#define LEAST_RECORDS 16
#define MOST_RECORDS 256

static uint32_t round_up(uint32_t n)
{
	uint32_t power = 1;

	while (power < n)
		power *= 2;
	return power;
}

static void set_sizes(struct stall_bpf_waits *waits)
{
	const struct stall_bpf_waits_options *options = &waits->options;
	struct waits *skeleton = waits->skeleton;
	uint32_t threads = round_up(options->max_threads * THREAD_PLACES_PER_SLOT);
	uint32_t records = round_up(RECORDS_PER_CPU * libbpf_num_possible_cpus());

	if (threads < LEAST_THREAD_PLACES)
		threads = LEAST_THREAD_PLACES;
	waits->slot_count = options->max_threads;
	waits->thread_count = threads;
	waits->stat_mask = round_up(options->max_keys) - 1;
	waits->stat_count = (size_t)waits->stat_mask + 1 + STALL_WAIT_KINDS;
	bpf_map__set_max_entries(skeleton->maps.slots, waits->slot_count);
	bpf_map__set_max_entries(skeleton->maps.free_slots, waits->slot_count);
	bpf_map__set_max_entries(skeleton->maps.passes, waits->slot_count);
	bpf_map__set_max_entries(skeleton->maps.threads, threads);
	bpf_map__set_max_entries(skeleton->maps.stats, waits->stat_count);
	bpf_map__set_max_entries(skeleton->maps.made_stats, waits->stat_count);
	bpf_map__set_max_entries(skeleton->maps.records, options->ring_bytes);
	bpf_map__set_max_entries(skeleton->maps.alarms, options->ring_bytes < ALARM_BYTES
								? options->ring_bytes
								: ALARM_BYTES);
	if (records < LEAST_RECORDS)
		records = LEAST_RECORDS;
	if (records > MOST_RECORDS)
		records = MOST_RECORDS;
	bpf_map__set_max_entries(skeleton->maps.record_buffers, records);
	skeleton->rodata->record_mask = records - 1;
	skeleton->rodata->thread_mask = threads - 1;
	skeleton->rodata->stat_mask = waits->stat_mask;
	skeleton->rodata->max_slots = waits->slot_count;
	skeleton->rodata->max_stack = options->stack_bytes;
	skeleton->rodata->record_cost_ns = 1000000000 / options->records_per_second;
	skeleton->rodata->enabled_kinds = options->kinds;
	stall_wait_calls_set(options->kinds, (void *)skeleton->rodata->calls);
}

// The programs' requirements of the kernel, and what is lost without them.
static const struct tracepoint {
	const char *name, *attach_point;
	const char *type;  // of the kernel, which exists where it has the tracepoint
	const char *needs; // without it nothing works
	const char *lost;
	const char *perf_point; // attach_point where perf starts the program
} tracepoints[] = {
	// Attach the ends before the beginnings.
	{"sched_process_exit", "raw tracepoint sched_process_exit", "btf_trace_sched_process_exit",
	 "take a kernel with CONFIG_TRACEPOINTS", NULL, NULL},
	{"sched_process_exec", "raw tracepoint sched_process_exec", "btf_trace_sched_process_exec",
	 NULL,
	 "this kernel has no tracepoint sched_process_exec: a process that starts another program "
	 "is seen to do so only by its maps",
	 NULL},
	{"sched_process_fork", "raw tracepoint sched_process_fork", "btf_trace_sched_process_fork",
	 NULL, "this kernel has no tracepoint sched_process_fork: children are not reported", NULL},
	{"sys_exit", "raw tracepoint sys_exit", "btf_trace_sys_exit",
	 "take a kernel with CONFIG_FTRACE_SYSCALLS", NULL, "perf tracepoint sys_exit"},
	{"sys_enter", "raw tracepoint sys_enter", "btf_trace_sys_enter",
	 "take a kernel with CONFIG_FTRACE_SYSCALLS", NULL, "perf tracepoint sys_enter"},
};
#define TRACEPOINTS (sizeof(tracepoints) / sizeof(tracepoints[0]))

// As tracepoints[].
static void programs_of(const struct stall_bpf_waits *waits,
			struct bpf_program *programs[TRACEPOINTS],
			struct bpf_link **links[TRACEPOINTS])
{
	struct waits *skeleton = waits->skeleton;

	programs[0] = skeleton->progs.stall_task_exit;
	programs[1] = skeleton->progs.stall_exec;
	programs[2] = skeleton->progs.stall_fork;
	programs[3] =
		waits->by_perf ? skeleton->progs.stall_perf_exit : skeleton->progs.stall_sys_exit;
	programs[4] =
		waits->by_perf ? skeleton->progs.stall_perf_enter : skeleton->progs.stall_sys_enter;
	links[0] = &skeleton->links.stall_task_exit;
	links[1] = &skeleton->links.stall_exec;
	links[2] = &skeleton->links.stall_fork;
	links[3] =
		waits->by_perf ? &skeleton->links.stall_perf_exit : &skeleton->links.stall_sys_exit;
	links[4] = waits->by_perf ? &skeleton->links.stall_perf_enter
				  : &skeleton->links.stall_sys_enter;
}

static struct stall_error *check_tracepoints(const struct btf *btf)
{
	for (size_t i = 0; i < TRACEPOINTS; i++) {
		const struct tracepoint *tracepoint = &tracepoints[i];

		if (tracepoint->needs &&
		    btf__find_by_name_kind(btf, tracepoint->type, BTF_KIND_TYPEDEF) < 0)
			return stall_error_create(
				STALL_ERROR_UNSUPPORTED,
				"this kernel has no tracepoint %s, so no wait can be "
				"seen; %s",
				tracepoint->name, tracepoint->needs);
	}
	return NULL;
}

// Whether this kernel may preempt the program of a raw tracepoint. No type says so: kernels that do
// (7.2; not 6.18) count the runs of a program by context, in bytes.
static bool may_preempt(const struct btf *btf)
{
	const struct btf_member *active = stall_kernel_member(btf, "bpf_prog", "active");
	const struct btf_type *pointer = active ? btf__type_by_id(btf, active->type) : NULL;

	return pointer && btf_is_ptr(pointer) && btf__resolve_size(btf, pointer->type) == 1;
}

static bool has_perf_events(void)
{
	static const char *const ids[] = {
		"/sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
		"/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id",
	};

	return !faccessat(AT_FDCWD, ids[0], R_OK, AT_EACCESS) ||
	       !faccessat(AT_FDCWD, ids[1], R_OK, AT_EACCESS);
}

static void choose_programs(struct stall_bpf_waits *waits, const struct btf *btf)
{
	struct bpf_program *programs[TRACEPOINTS];
	struct bpf_link **links[TRACEPOINTS];

	waits->by_perf = may_preempt(btf) && has_perf_events();
	// The loop has more on the two that are chosen between.
	bpf_program__set_autoload(waits->skeleton->progs.stall_sys_enter, !waits->by_perf);
	bpf_program__set_autoload(waits->skeleton->progs.stall_sys_exit, !waits->by_perf);
	bpf_program__set_autoload(waits->skeleton->progs.stall_perf_enter, waits->by_perf);
	bpf_program__set_autoload(waits->skeleton->progs.stall_perf_exit, waits->by_perf);
	programs_of(waits, programs, links);
	for (size_t i = 0; i < TRACEPOINTS; i++)
		bpf_program__set_autoload(programs[i],
					  btf__find_by_name_kind(btf, tracepoints[i].type,
								 BTF_KIND_TYPEDEF) >= 0);
}

// 0, or the kernel's errno.
static int load(struct stall_bpf_waits *waits, const struct btf *btf, unsigned int pidns,
		bool timer)
{
	struct waits *skeleton = waits->skeleton = waits__open();

	if (!skeleton)
		return errno ? errno : ENOMEM;
	set_sizes(waits);
	choose_programs(waits, btf);
	skeleton->rodata->reader_pidns = pidns;
	bpf_program__set_autoload(skeleton->progs.stall_start_timer, timer);
	bpf_program__set_autoload(skeleton->progs.stall_scan, !timer);
	bpf_map__set_autocreate(skeleton->maps.scan_timers, timer);
	stall_uprobes_prepare(&waits->uprobes, skeleton);
	stall_storage_prepare(waits, btf);
	waits->async_why_not = stall_async_prepare(skeleton, btf, &waits->async_submit);
	int rc = waits__load(skeleton);
	if (rc) {
		waits__destroy(skeleton);
		waits->skeleton = NULL;
		return -rc;
	}
	waits->has_timer = timer;
	return 0;
}

static struct stall_error *load_with_types(struct stall_bpf_waits *waits, const struct btf *btf)
{
	struct stall_bpf_log log;
	unsigned int pidns;
	int rc = EINVAL;
	struct stall_error *err = stall_bpf_pid_namespace(&pidns);

	if (!err)
		err = check_tracepoints(btf);
	if (err)
		return err;
	stall_bpf_log_begin(&log);
	if (!waits->options.no_timer && !waits->options.storage)
		rc = load(waits, btf, pidns, true);
	// Without timers the verifier refuses their program and map, and takes the rest.
	if (rc && rc != EPERM && rc != ENOMEM)
		rc = load(waits, btf, pidns, false);
	stall_bpf_log_end(&log);
	return rc ? stall_bpf_load_error(rc, "the BPF programs that see waits", log.text) : NULL;
}

struct stall_error *stall_bpf_waits_load(struct stall_bpf_waits *waits)
{
	struct stall_bpf_log log;

	stall_bpf_log_begin(&log);
	struct btf *btf = btf__load_vmlinux_btf();
	int errnum = errno;
	stall_bpf_log_end(&log);
	// Without the errno, ESRCH, which would mean that the target has ended.
	if (!btf)
		return stall_bpf_no_types(errnum);
	struct stall_error *err = load_with_types(waits, btf);
	btf__free(btf);
	return err;
}

void stall_bpf_waits_note_probe(struct stall_bpf_waits *waits, const char *name,
				const char *attach_point, const char *why_not)
{
	if (waits->program_count < STALL_MAX_WAIT_PROGRAMS)
		waits->programs[waits->program_count++] =
			(struct stall_wait_program){name, attach_point, why_not};
}

static struct stall_error *attach(struct bpf_program *program, const char *what,
				  struct bpf_link **ret)
{
	struct stall_bpf_log log;

	stall_bpf_log_begin(&log);
	*ret = bpf_program__attach(program);
	int errnum = errno;
	stall_bpf_log_end(&log);
	return *ret ? NULL : stall_error_os(errnum, "cannot attach to the tracepoint %s", what);
}

static void note_programs(struct stall_bpf_waits *waits)
{
	struct bpf_program *programs[TRACEPOINTS];
	struct bpf_link **links[TRACEPOINTS];

	programs_of(waits, programs, links);
	for (size_t i = 0; i < TRACEPOINTS; i++) {
		bool there = bpf_program__autoload(programs[i]);
		bool by_perf = waits->by_perf && tracepoints[i].perf_point;

		stall_bpf_waits_note_probe(waits, tracepoints[i].name,
					   by_perf ? tracepoints[i].perf_point
						   : tracepoints[i].attach_point,
					   there ? NULL : tracepoints[i].lost);
	}
	if (!waits->options.storage)
		stall_bpf_waits_note_probe(waits, "uprobes",
					   "uprobes in the server's wait functions",
					   waits->uprobes.why_not);
	stall_bpf_waits_note_probe(waits, "io_uring",
				   "raw tracepoints " STALL_URING_SUBMIT
				   " (before 6.4: " STALL_URING_SUBMIT_BEFORE
				   ") and io_uring_complete",
				   waits->async_why_not);
}

static struct stall_error *attach_all(struct stall_bpf_waits *waits)
{
	struct bpf_program *programs[TRACEPOINTS];
	struct bpf_link **links[TRACEPOINTS];

	if (waits->options.no_attach)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "switched off: nothing is attached");
	stall_storage_attach(waits);
	if (waits->options.storage)
		stall_bpf_waits_note_probe(waits, "dirty",
					   "raw tracepoint writeback_dirty_folio (on older kernels "
					   "writeback_dirty_page)",
					   waits->dirty_why_not);
	programs_of(waits, programs, links);
	for (size_t i = 0; i < TRACEPOINTS; i++) {
		struct stall_error *err =
			bpf_program__autoload(programs[i])
				? attach(programs[i], tracepoints[i].name, links[i])
				: NULL;

		if (err)
			return err;
	}
	return waits->async_why_not ? NULL
				    : stall_async_attach(waits->skeleton, waits->async_submit);
}

static struct stall_error *start_timer(struct stall_bpf_waits *waits)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts);

	if (waits->options.storage) // no wait is reported
		return NULL;
	if (!waits->has_timer) {
		stall_bpf_waits_note_probe(waits, "timer", "BPF timer",
					   waits->options.no_timer
						   ? "switched off: waits in flight are found "
						     "from user space"
						   : "this kernel has no BPF timers: waits in "
						     "flight are found from user space");
		return NULL;
	}
	int rc = bpf_prog_test_run_opts(bpf_program__fd(waits->skeleton->progs.stall_start_timer),
					&opts);
	if (rc || opts.retval)
		return stall_error_os(rc ? -rc : EINVAL, "cannot start the BPF timer");
	stall_bpf_waits_note_probe(waits, "timer", "BPF timer", NULL);
	return NULL;
}

struct stall_error *stall_waits_start(struct stall_bpf_waits *waits)
{
	note_programs(waits);
	return start_timer(waits);
}

static void set_call_added(struct stall_bpf_waits *waits, uint64_t before_ps)
{
	uint64_t after_ps = stall_call_cost_ps();

	waits->call_added_ns = after_ps > before_ps ? (int64_t)((after_ps - before_ps) / 1000) : 0;
}

int64_t stall_bpf_waits_call_added_ns(const struct stall_bpf_waits *waits)
{
	return waits->attached ? waits->call_added_ns : -1;
}

struct stall_error *stall_bpf_waits_attach(struct stall_bpf_waits *waits)
{
	if (waits->attached)
		return NULL;
	// Once is enough, and a stall must not wait for it.
	bool measures = waits->call_added_ns < 0;
	uint64_t before_ps = measures ? stall_call_cost_ps() : 0;
	struct stall_error *err = attach_all(waits);
	waits->attached = true;
	waits->missed_is_known = false;
	if (err)
		stall_bpf_waits_detach(waits);
	else if (measures)
		set_call_added(waits, before_ps);
	return err;
}

// Unless the programs have ended, a thread might end its wait and user space as well.
void stall_bpf_waits_detach(struct stall_bpf_waits *waits)
{
	struct bpf_program *programs[TRACEPOINTS];
	struct bpf_link **links[TRACEPOINTS];

	if (!waits->attached)
		return;
	programs_of(waits, programs, links);
	for (size_t i = TRACEPOINTS; i-- > 0;) {
		bpf_link__destroy(*links[i]);
		*links[i] = NULL;
	}
	stall_async_detach(waits->skeleton);
	stall_storage_detach(waits);
	stall_waits_have_programs_ended(waits);
	waits->attached = false;
}

bool stall_bpf_waits_is_attached(const struct stall_bpf_waits *waits)
{
	return waits->attached;
}

// SPDX-License-Identifier: Apache-2.0
#include "ebpf/growth_loader.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ebpf/bpf_error.h"
#include "ebpf/fair_share.h" // the skeleton has one
#include "ebpf/task_iterator.h"
#include "growth.skel.h"

#define INITIAL_PIDNS 0xEFFFFFFCU // PROC_PID_INIT_INO, include/linux/proc_ns.h
#define FAULT_RING (8u << 20)	  // 150,000 faults
#define STACK_RING (32u << 20)	  // 3,000 stacks of a server
#define WINDOWS_PER_SECOND 100
#define RSS_STAT_PARAMETERS 3 // with the context

struct stall_bpf_growth {
	struct growth *skeleton;
	struct ring_buffer *ring; // both
	const struct stall_bpf_growth_handler *handler;
	struct stall_bpf_growth_programs programs;
};

static int take_fault(void *arg, void *data, size_t size)
{
	struct stall_bpf_growth *growth = arg;
	const struct stall_growth_fault *fault = data;

	if (size >= sizeof(*fault) && fault->magic == STALL_BPF_MAGIC)
		growth->handler->fault(growth->handler->arg, fault);
	return 0;
}

static int take_stack(void *arg, void *data, size_t size)
{
	struct stall_bpf_growth *growth = arg;
	const struct stall_growth_stack *record = data;

	if (size >= sizeof(*record) && record->fault.magic == STALL_BPF_MAGIC &&
	    record->stack_size <= size - sizeof(*record))
		growth->handler->stack(growth->handler->arg, record,
				       (const uint8_t *)data + sizeof(*record));
	return 0;
}

// Whether the kernel has the tracepoint; its parameters with the context, or 0.
static int tracepoint_parameters(const struct btf *btf, const char *type)
{
	int id = btf__find_by_name_kind(btf, type, BTF_KIND_TYPEDEF);
	const struct btf_type *found = id > 0 ? btf__type_by_id(btf, id) : NULL;

	while (found && (btf_is_typedef(found) || btf_is_ptr(found)))
		found = btf__type_by_id(btf, found->type);
	return found && btf_is_func_proto(found) ? btf_vlen(found) : 0;
}

static struct stall_error *choose_programs(struct stall_bpf_growth *growth)
{
	struct btf *btf = btf__load_vmlinux_btf();
	struct stall_bpf_growth_programs *programs = &growth->programs;

	if (!btf)
		return stall_bpf_no_types(errno);
	int user = tracepoint_parameters(btf, "btf_trace_page_fault_user");
	int kernel = tracepoint_parameters(btf, "btf_trace_page_fault_kernel");
	int rss = tracepoint_parameters(btf, "btf_trace_rss_stat");

	btf__free(btf);
	if (!user)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"this kernel has no tracepoint page_fault_user, so the growth of memory "
			"cannot be seen; take a kernel with CONFIG_TRACEPOINTS for x86-64");
	programs->kernel_faults = kernel != 0;
	if (!kernel)
		programs->no_kernel = "this kernel has no tracepoint page_fault_kernel: pages that "
				      "system calls touch first have no stack";
	// Before 6.2 (f1a7941243c1) threads count pages of their own, and report each 64th.
	programs->populate = rss == RSS_STAT_PARAMETERS;
	if (!programs->populate)
		programs->no_populate =
			rss ? "this kernel reports changes of RSS in groups of 64 pages: pages "
			      "that "
			      "direct I/O and mlock make have no stack"
			    : "this kernel has no tracepoint rss_stat: pages that direct I/O and "
			      "mlock make have no stack";
	bpf_program__set_autoload(growth->skeleton->progs.stall_fault_kernel,
				  programs->kernel_faults);
	bpf_program__set_autoload(growth->skeleton->progs.stall_rss, programs->populate);
	return NULL;
}

static struct stall_error *open_skeleton(struct stall_bpf_growth *growth,
					 const struct stall_bpf_growth_options *options)
{
	unsigned int pidns;
	struct stall_error *err = stall_bpf_pid_namespace(&pidns);

	if (err)
		return err;
	struct growth *skeleton = growth->skeleton = growth__open();
	if (!skeleton)
		return stall_error_os(errno ? errno : ENOMEM, "cannot open the BPF programs");
	skeleton->rodata->reader_pidns = pidns;
	skeleton->rodata->reader_is_initial = pidns == INITIAL_PIDNS;
	skeleton->rodata->wanted = options->pid;
	skeleton->rodata->max_stack = options->max_stack;
	skeleton->rodata->stack_cost_ns = 1000000000 / options->stacks_per_second;
	skeleton->rodata->window_records = options->faults_per_second / WINDOWS_PER_SECOND;
	bpf_map__set_max_entries(skeleton->maps.fault_ring, FAULT_RING);
	bpf_map__set_max_entries(skeleton->maps.stack_ring, STACK_RING);
	bpf_map__set_max_entries(skeleton->maps.stack_records, libbpf_num_possible_cpus());
	return choose_programs(growth);
}

static struct stall_error *load(struct stall_bpf_growth *growth,
				const struct stall_bpf_growth_options *options)
{
	struct stall_bpf_log log;

	stall_bpf_log_begin(&log);
	struct stall_error *err = open_skeleton(growth, options);
	int rc = err ? 0 : growth__load(growth->skeleton);
	stall_bpf_log_end(&log);
	if (rc)
		err = stall_bpf_load_error(-rc, "the BPF programs of page faults", log.text);
	if (err)
		return err;
	err = stall_task_iterator_walk(growth->skeleton->progs.stall_growth_find, options->pid);
	if (err) { // it cannot be limited to one process here
		stall_error_destroy(err);
		err = stall_task_iterator_walk(growth->skeleton->progs.stall_growth_find, 0);
	}
	if (!err && !growth->skeleton->bss->target_mm)
		err = stall_error_create(STALL_ERROR_NO_PROCESS,
					 "process %d has ended, or has no memory", options->pid);
	return err;
}

// The first is needed, the others are not.
static struct stall_error *attach(struct stall_bpf_growth *growth)
{
	struct growth *skeleton = growth->skeleton;
	struct stall_bpf_growth_programs *programs = &growth->programs;
	struct stall_bpf_log log;

	stall_bpf_log_begin(&log);
	skeleton->links.stall_fault_user = bpf_program__attach(skeleton->progs.stall_fault_user);
	int errnum = errno;
	if (programs->kernel_faults)
		skeleton->links.stall_fault_kernel =
			bpf_program__attach(skeleton->progs.stall_fault_kernel);
	if (programs->populate)
		skeleton->links.stall_rss = bpf_program__attach(skeleton->progs.stall_rss);
	stall_bpf_log_end(&log);
	if (!skeleton->links.stall_fault_user)
		return stall_error_os(errnum, "cannot attach to the tracepoint page_fault_user");
	if (programs->kernel_faults && !skeleton->links.stall_fault_kernel) {
		programs->kernel_faults = false;
		programs->no_kernel = "the kernel refused the tracepoint page_fault_kernel: pages "
				      "that system calls touch first have no stack";
	}
	if (programs->populate && !skeleton->links.stall_rss) {
		programs->populate = false;
		programs->no_populate = "the kernel refused the tracepoint rss_stat: pages that "
					"direct I/O and mlock make have no stack";
	}
	return NULL;
}

static struct stall_error *open_rings(struct stall_bpf_growth *growth)
{
	struct growth *skeleton = growth->skeleton;

	growth->ring =
		ring_buffer__new(bpf_map__fd(skeleton->maps.stack_ring), take_stack, growth, NULL);
	if (!growth->ring || ring_buffer__add(growth->ring, bpf_map__fd(skeleton->maps.fault_ring),
					      take_fault, growth) < 0)
		return stall_error_os(errno, "cannot open the BPF ring buffers");
	return NULL;
}

struct stall_error *stall_bpf_growth_create(const struct stall_bpf_growth_options *options,
					    const struct stall_bpf_growth_handler *handler,
					    struct stall_bpf_growth **ret)
{
	struct stall_bpf_growth *growth = calloc(1, sizeof(*growth));

	if (!growth)
		return &stall_enomem;
	growth->handler = handler;
	struct stall_error *err = load(growth, options);
	if (!err)
		err = open_rings(growth);
	if (!err)
		err = attach(growth);
	if (err) {
		stall_bpf_growth_destroy(growth);
		return err;
	}
	*ret = growth;
	return NULL;
}

void stall_bpf_growth_destroy(struct stall_bpf_growth *growth)
{
	if (!growth)
		return;
	ring_buffer__free(growth->ring);
	growth__destroy(growth->skeleton);
	free(growth);
}

void stall_bpf_growth_set_code(struct stall_bpf_growth *growth, const struct stall_bpf_code *code)
{
	struct growth__bss *bss = growth->skeleton->bss;

	for (size_t i = 0; i < 2; i++) {
		bss->code_low[i] = code->low[i];
		bss->code_high[i] = code->high[i];
	}
}

void stall_bpf_growth_start(struct stall_bpf_growth *growth)
{
	*(volatile __u32 *)&growth->skeleton->bss->running = 1;
}

void stall_bpf_growth_stop(struct stall_bpf_growth *growth)
{
	*(volatile __u32 *)&growth->skeleton->bss->running = 0;
}

struct stall_error *stall_bpf_growth_read(struct stall_bpf_growth *growth)
{
	int rc = ring_buffer__consume(growth->ring);

	return rc < 0 ? stall_error_os(-rc, "cannot read the BPF ring buffer") : NULL;
}

struct stall_bpf_growth_counts stall_bpf_growth_counts(const struct stall_bpf_growth *growth)
{
	const struct growth__bss *bss = growth->skeleton->bss;
	struct stall_bpf_growth_counts counts;

	memcpy(counts.faults, bss->faults, sizeof(counts.faults));
	memcpy(counts.lost, bss->lost, sizeof(counts.lost));
	return counts;
}

struct stall_bpf_growth_programs stall_bpf_growth_programs(const struct stall_bpf_growth *growth)
{
	return growth->programs;
}

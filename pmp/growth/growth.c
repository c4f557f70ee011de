// SPDX-License-Identifier: Apache-2.0
#include "growth/growth.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "growth/growth_state.h"
#include "snapshot/snapshot.h"

#define DEFAULT_MAX_STACK 32768
#define DEFAULT_STACKS 1000
#define DEFAULT_FAULTS 50000
#define ARENA_SIZE ((size_t)STALL_GROWTH_BATCH * (DEFAULT_MAX_STACK + 8192))
#define UNWOUND_PER_SECOND 1000000 // no limit: the copies have one
#define KERNEL_HALF (UINT64_C(1) << 63)

void stall_growth_options_init(struct stall_growth_options *options)
{
	*options = (struct stall_growth_options){
		.duration_ns = UINT64_C(30000000000),
		.max_stack = DEFAULT_MAX_STACK,
		.stacks_per_second = DEFAULT_STACKS,
		.faults_per_second = DEFAULT_FAULTS,
	};
	options->worker.deadline_ms = STALL_DEFAULT_DEADLINE_MS;
}

void stall_growth_destroy(struct stall_growth *growth)
{
	if (!growth)
		return;
	stall_bpf_growth_destroy(growth->bpf);
	stall_wait_unwinder_destroy(growth->unwinder);
	stall_wait_stacks_destroy(growth->stacks);
	stall_wait_processes_deinit(&growth->processes);
	stall_worker_destroy(growth->worker);
	if (growth->arena.base)
		stall_arena_deinit(&growth->arena);
	stall_growth_pages_deinit(&growth->pages);
	stall_touchers_deinit(&growth->touchers);
	stall_hashed_stacks_deinit(&growth->hashed);
	stall_growth_mappings_deinit(&growth->before);
	stall_growth_mappings_deinit(&growth->after);
	stall_resident_deinit(&growth->resident_before);
	stall_resident_deinit(&growth->resident_after);
	stall_error_destroy(growth->failed);
	free(growth->threads);
	free(growth);
}

static const struct stall_process *process_of(const struct stall_growth *growth)
{
	return &growth->processes.processes[0].snapshot->processes[0];
}

// A thread has the name of its first stack.
static void name_thread(struct stall_growth *growth, pid_t tid, const char comm[STALL_COMM])
{
	for (size_t i = 0; i < growth->thread_count; i++)
		if (growth->threads[i].tid == tid)
			return;
	if (growth->thread_count == STALL_GROWTH_MAX_THREADS)
		return;
	struct stall_growth_thread *thread = &growth->threads[growth->thread_count++];
	thread->tid = tid;
	memcpy(thread->comm, comm, STALL_COMM);
	thread->comm[STALL_COMM - 1] = 0;
}

static struct stall_error *apply(struct stall_growth *growth,
				 const struct stall_growth_fault *fault, uint32_t stack)
{
	const struct stall_toucher wanted = {
		.hash = stack ? 0 : fault->hash,
		.site = stack ? 0 : fault->site,
		.stack = stack,
		.tid = fault->tid,
		.kind = fault->kind,
		.flags = fault->flags & STALL_GROWTH_ON_STACK,
	};
	uint32_t toucher;
	struct stall_error *err = stall_touchers_get(&growth->touchers, &wanted, &toucher);

	if (err)
		return err;
	if (toucher == STALL_NO_TOUCHER) {
		growth->touchers.no_room += fault->weight;
		return NULL;
	}
	growth->touchers.list[toucher].touched += fault->weight;
	return stall_growth_pages_set(&growth->pages, fault->address, toucher, fault->weight);
}

static struct stall_error *flush(struct stall_growth *growth)
{
	struct stall_error *err = NULL;

	if (growth->item_count)
		err = stall_wait_unwind(growth->unwinder, growth->items, growth->item_count);
	for (size_t i = 0; !err && i < growth->item_count; i++) {
		uint32_t stack = growth->items[i].stack_id;

		err = stall_hashed_stacks_set(&growth->hashed, growth->faults[i].hash, stack);
		if (!err)
			err = stall_hashed_stacks_set(&growth->hashed, growth->faults[i].site,
						      stack);
		if (!err)
			err = apply(growth, &growth->faults[i], stack);
	}
	growth->item_count = 0;
	stall_arena_reset(&growth->arena, ARENA_SIZE);
	return err;
}

static void take_fault(void *arg, const struct stall_growth_fault *fault)
{
	struct stall_growth *growth = arg;

	if (!growth->failed && fault->kind < STALL_GROWTH_KINDS)
		growth->failed = apply(growth, fault, 0);
}

static void take_stack(void *arg, const struct stall_growth_stack *record, const uint8_t *stack)
{
	struct stall_growth *growth = arg;

	if (growth->failed || record->fault.kind >= STALL_GROWTH_KINDS)
		return;
	if (growth->item_count == STALL_GROWTH_BATCH)
		growth->failed = flush(growth);
	if (growth->failed)
		return;
	struct stall_wait_item *item = &growth->items[growth->item_count];
	*item = (struct stall_wait_item){
		.record = {.type = STALL_RECORD_END,
			   .tid = record->fault.tid,
			   .ns_tid = record->ns_tid,
			   .key = {.tgid = growth->options.pid},
			   .now_ns = record->now_ns},
		.received_ns = record->now_ns,
		.exact = true, // by the thread itself, in the kernel
		.stack_address = record->stack_address,
	};
	memcpy(item->record.regs, record->regs, sizeof(record->regs));
	memcpy(item->record.comm, record->comm, sizeof(record->comm));
	uint8_t *copy =
		record->stack_size ? stall_arena_alloc(&growth->arena, record->stack_size) : NULL;
	if (copy) {
		memcpy(copy, stack, record->stack_size);
		item->stack = copy;
		item->stack_size = record->stack_size;
	}
	growth->faults[growth->item_count++] = record->fault;
	name_thread(growth, record->fault.tid, record->comm);
}

// A program that is not position-independent lies far from its libraries, with the heap between.
static struct stall_bpf_code code_of(const struct stall_process *process)
{
	struct stall_bpf_code code = {.low = {UINT64_MAX, UINT64_MAX}};
	const struct stall_maps *maps = process->maps;

	for (size_t i = 0; i < maps->mapping_count; i++) {
		const struct stall_mapping *mapping = &maps->mappings[i];
		bool is_exe = mapping->module != STALL_NO_MODULE && process->exe &&
			      !strcmp(maps->modules[mapping->module].path, process->exe);

		if (!mapping->executable || mapping->start >= KERNEL_HALF)
			continue;
		if (mapping->start < code.low[!is_exe])
			code.low[!is_exe] = mapping->start;
		if (mapping->end > code.high[!is_exe])
			code.high[!is_exe] = mapping->end;
	}
	return code;
}

static struct stall_error *make_unwinder(struct stall_growth *growth)
{
	struct stall_error *err = stall_arena_init(&growth->arena, ARENA_SIZE);

	// Make the child early: it then shares little of our memory, and none of the target's data.
	if (!err)
		err = stall_worker_create(&growth->arena, &growth->options.worker, &growth->worker);
	if (!err)
		err = stall_wait_stacks_create(&growth->stacks);
	if (err)
		return err;
	const struct stall_wait_unwinder_options unwinder = {
		.arena = &growth->arena,
		.worker = growth->worker,
		.processes = &growth->processes,
		.stacks = growth->stacks,
		.stacks_per_second = UNWOUND_PER_SECOND,
	};
	return stall_wait_unwinder_create(&unwinder, &growth->unwinder);
}

static struct stall_error *attach(struct stall_growth *growth)
{
	const struct stall_bpf_growth_options options = {
		.pid = growth->options.pid,
		.max_stack = growth->options.max_stack,
		.stacks_per_second = growth->options.stacks_per_second,
		.faults_per_second = growth->options.faults_per_second,
	};

	growth->handler = (struct stall_bpf_growth_handler){.arg = growth,
							    .fault = take_fault,
							    .stack = take_stack};
	struct stall_error *err = stall_bpf_growth_create(&options, &growth->handler, &growth->bpf);
	if (err)
		return err;
	const struct stall_bpf_code code = code_of(process_of(growth));
	stall_bpf_growth_set_code(growth->bpf, &code);
	return NULL;
}

static struct stall_error *read_memory(const struct stall_growth *growth,
				       struct stall_growth_mappings *mappings,
				       struct stall_resident *resident)
{
	const struct stall_target *target = &process_of(growth)->target;
	struct stall_error *err = stall_growth_mappings_read(target, mappings);

	return err ? err : stall_resident_read(target, mappings, resident);
}

struct stall_error *stall_growth_create(const struct stall_growth_options *options,
					struct stall_growth **ret)
{
	_cleanup_(stall_growth_destroyp) struct stall_growth *growth = calloc(1, sizeof(*growth));

	if (!growth)
		return &stall_enomem;
	growth->options = *options;
	growth->threads = calloc(STALL_GROWTH_MAX_THREADS, sizeof(*growth->threads));
	if (!growth->threads)
		return &stall_enomem;
	struct stall_error *err = make_unwinder(growth);
	if (!err)
		err = stall_wait_processes_add(&growth->processes, &growth->arena, options->pid);
	if (!err)
		err = attach(growth);
	if (!err)
		err = read_memory(growth, &growth->before, &growth->resident_before);
	if (err)
		return err;
	stall_bpf_growth_start(growth->bpf);
	growth->started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	*ret = no_cleanup_ptr(growth);
	return NULL;
}

static struct stall_error *take(struct stall_growth *growth)
{
	struct stall_error *err = stall_bpf_growth_read(growth->bpf);

	if (growth->failed) {
		stall_error_destroy(err);
		err = growth->failed;
		growth->failed = NULL;
	}
	return err ? err : flush(growth);
}

static bool has_ended(const struct stall_growth *growth)
{
	_cleanup_error_ struct stall_error *err = stall_process_check(process_of(growth));

	return err && (err->code == STALL_ERROR_NO_PROCESS || err->code == STALL_ERROR_AGAIN);
}

struct stall_error *stall_growth_poll(struct stall_growth *growth, bool *ret_ended)
{
	struct stall_error *err = take(growth);

	if (!err && has_ended(growth))
		*ret_ended = growth->ended = true;
	return err;
}

static void add_own(struct stall_growth *growth, const struct stall_growth_mapping *mapping,
		    uint64_t address)
{
	const struct stall_growth_page *page = stall_growth_pages_find(&growth->pages, address);
	uint32_t weight = 1;

	growth->totals.added++;
	if (page) {
		weight = page->weight;
	} else if (!growth->pages.is_sampled || (mapping && mapping->huge)) {
		// A fault in it made a huge page, or several small ones.
		page = stall_growth_pages_find_block(&growth->pages, address);
		weight = page && growth->pages.is_sampled ? page->weight : 1;
	}
	if (!page)
		return;
	growth->touchers.list[page->toucher].own += weight;
	growth->totals.seen += weight;
}

static void compare_own(struct stall_growth *growth)
{
	uint64_t kept = 0;

	for (size_t i = 0; i < growth->resident_after.count; i++) {
		const struct stall_resident_range *range = &growth->resident_after.ranges[i];
		const struct stall_growth_mapping *mapping =
			stall_growth_mappings_find(&growth->after, range->start);

		for (uint64_t at = range->start; at < range->end; at += STALL_PAGE) {
			uint64_t page = (at - range->start) / STALL_PAGE;
			if (!(range->bits[page / 64] >> (page % 64) & 1))
				continue;
			if (stall_resident_has(&growth->resident_before, at))
				kept++;
			else
				add_own(growth, mapping, at);
		}
	}
	growth->totals.freed = growth->resident_before.pages - kept;
}

// Pages that are not the process's own.
static void compare_others(struct stall_growth *growth)
{
	for (size_t i = 0; i < growth->pages.capacity; i++) {
		const struct stall_growth_page *page = &growth->pages.slots[i];
		if (!page->address || stall_resident_has(&growth->resident_after, page->address))
			continue;
		const struct stall_growth_mapping *mapping =
			stall_growth_mappings_find(&growth->after, page->address);
		struct stall_toucher *toucher = &growth->touchers.list[page->toucher];

		if (!mapping)
			toucher->gone += page->weight;
		else if (mapping->page_size > STALL_PAGE)
			toucher->hugetlb += page->weight * mapping->page_size;
		else if (mapping->is_shared)
			toucher->shared += page->weight;
		else if (mapping->is_file)
			toucher->file += page->weight;
		else
			toucher->gone += page->weight;
	}
}

// Sampled pages may stand for more than there are, and pages without a fault for fewer calls.
static void settle_estimates(struct stall_growth *growth)
{
	struct stall_growth_totals *totals = &growth->totals;
	uint64_t made = 0;

	if (totals->seen > totals->added) {
		for (uint32_t i = 0; i < growth->touchers.count; i++) {
			struct stall_toucher *toucher = &growth->touchers.list[i];
			toucher->own = (uint64_t)((double)toucher->own * (double)totals->added /
						  (double)totals->seen);
		}
		totals->seen = totals->added;
	}
	for (uint32_t i = 0; i < growth->touchers.count; i++)
		if (growth->touchers.list[i].kind == STALL_GROWTH_POPULATE)
			made += growth->touchers.list[i].touched;
	uint64_t unseen = totals->added - totals->seen;
	double share = made > unseen ? (double)unseen / (double)made : 1;
	for (uint32_t i = 0; i < growth->touchers.count; i++) {
		struct stall_toucher *toucher = &growth->touchers.list[i];
		if (toucher->kind != STALL_GROWTH_POPULATE)
			continue;
		toucher->own = (uint64_t)((double)toucher->touched * share);
		totals->populated += toucher->own;
	}
}

static void resolve_hashes(struct stall_growth *growth)
{
	for (uint32_t i = 0; i < growth->touchers.count; i++) {
		struct stall_toucher *toucher = &growth->touchers.list[i];
		if (!toucher->stack)
			toucher->stack = stall_hashed_stacks_find(&growth->hashed, toucher->hash);
		if (!toucher->stack)
			toucher->stack = stall_hashed_stacks_find(&growth->hashed, toucher->site);
	}
}

struct stall_error *stall_growth_finish(struct stall_growth *growth)
{
	struct stall_error *err = NULL;

	stall_bpf_growth_stop(growth->bpf);
	growth->ended_ns = stall_clock_ns(CLOCK_MONOTONIC);
	if (!growth->ended)
		err = read_memory(growth, &growth->after, &growth->resident_after);
	if (err && has_ended(growth)) {
		stall_error_destroy(err);
		err = NULL;
		growth->ended = true;
	}
	if (!err)
		err = take(growth);
	if (err)
		return err;
	resolve_hashes(growth);
	if (growth->ended)
		return NULL;
	err = stall_growth_pages_index_blocks(&growth->pages);
	if (err)
		return err;
	compare_own(growth);
	compare_others(growth);
	settle_estimates(growth);
	return stall_heap_slack_read(&process_of(growth)->target, &growth->after, &growth->slack);
}

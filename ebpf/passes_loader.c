// SPDX-License-Identifier: Apache-2.0
#include "ebpf/passes_loader.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/clock.h"
#include "ebpf/ignored_loader.h"
#include "ebpf/waits_slots.h"
#include "ebpf/waits_state.h"

// After a pass, for user space to find the role of new words. A pass finds most waits at two thirds of
// their threshold, and all of them are reported at most 100 ms late.
#define IDENTIFY_NS UINT64_C(50000000)
#define MAX_SAMPLES ((size_t)64 << 20) // bytes

static struct stall_error *find_process(struct stall_bpf_waits *waits, pid_t pid,
					struct stall_passes_of **ret)
{
	struct stall_passes *pass = &waits->pass;

	for (size_t i = 0; i < pass->count; i++) {
		*ret = &pass->processes[i];
		if (pass->processes[i].pid == pid)
			return NULL;
	}
	if (!stall_array_resize(&pass->processes, pass->count + 1))
		return &stall_enomem;
	struct bpf_program *program = waits->skeleton->progs.stall_pass;
	struct bpf_link *link = waits->no_limit ? NULL : stall_task_iterator_attach(program, pid);
	if (!link)
		link = stall_task_iterator_attach(program, 0);
	if (!link)
		return stall_error_os(errno, "cannot attach the BPF task iterator");
	*ret = &pass->processes[pass->count++];
	**ret = (struct stall_passes_of){pid, link};
	return NULL;
}

void stall_passes_remove(struct stall_bpf_waits *waits, pid_t pid)
{
	struct stall_passes *pass = &waits->pass;

	for (size_t i = 0; i < pass->count; i++) {
		if (pass->processes[i].pid != pid)
			continue;
		bpf_link__destroy(pass->processes[i].link);
		pass->processes[i] = pass->processes[--pass->count];
		return;
	}
}

void stall_passes_deinit(struct stall_bpf_waits *waits)
{
	for (size_t i = 0; i < waits->pass.count; i++)
		bpf_link__destroy(waits->pass.processes[i].link);
	free(waits->pass.processes);
	stall_bpf_records_deinit(&waits->pass.nothing);
}

// The two clocks drift apart slowly, and a pass that begins long after its thread came to its CPU
// sees too large a distance: the least of the latest passes is right to some microseconds.
static uint64_t clock_distance(struct stall_passes *pass, uint64_t seen)
{
	uint64_t least = 0;

	pass->clocks[pass->number % STALL_CLOCK_PASSES] = seen;
	for (int i = 0; i < STALL_CLOCK_PASSES; i++)
		if (pass->clocks[i] && (!least || pass->clocks[i] < least))
			least = pass->clocks[i];
	return least;
}

static void free_ended(struct stall_bpf_waits *waits, pid_t pid)
{
	size_t high = *(volatile __u32 *)&waits->skeleton->bss->slots_high;

	for (size_t i = 0; i < high && i < waits->slot_count; i++) {
		const struct stall_wait_slot *slot = &waits->slots[i];

		if (slot->tid && slot->tgid == pid && waits->passes[i].number != waits->pass.number)
			stall_waits_free_slot_of(waits, i, waits->passes[i].tid);
	}
}

static struct stall_error *run(struct stall_bpf_waits *waits, struct stall_passes_of *process,
			       struct stall_bpf_records *samples)
{
	struct stall_error *err = stall_task_iterator_run(process->link, MAX_SAMPLES, samples);

	// Limited to a process, the kernel may stop early: threads_loader.c.
	if (err || *(volatile __u32 *)&waits->skeleton->bss->pass_last)
		return err;
	struct bpf_link *whole = stall_task_iterator_attach(waits->skeleton->progs.stall_pass, 0);
	if (!whole)
		return stall_error_os(errno, "cannot attach the BPF task iterator");
	err = stall_task_iterator_run(whole, MAX_SAMPLES, samples);
	bpf_link__destroy(whole);
	return err;
}

struct stall_error *stall_bpf_waits_pass(struct stall_bpf_waits *waits, pid_t pid,
					 struct stall_bpf_records *samples,
					 struct stall_bpf_pass *ret)
{
	struct waits__bss *bss = waits->skeleton->bss;
	struct stall_passes *pass = &waits->pass;
	struct stall_passes_of *process = NULL;
	struct stall_error *err = find_process(waits, pid, &process);

	if (err)
		return err;
	bss->pass_pid = pid;
	bss->pass_number = ++pass->number;
	bss->pass_rests = !waits->attached;
	bss->pass_samples = samples != NULL;
	bss->pass_tgid = bss->pass_last = bss->pass_threads = bss->pass_execed = 0;
	bss->pass_clock_seen = 0;
	bss->unknown_until_ns = UINT64_MAX;
	err = run(waits, process, samples ? samples : &pass->nothing);
	bss->unknown_until_ns = stall_clock_ns(CLOCK_MONOTONIC) + IDENTIFY_NS;
	const volatile struct waits__bss *seen = bss;
	bss->pass_clock = clock_distance(pass, seen->pass_clock_seen);
	*ret = (struct stall_bpf_pass){
		.threads = seen->pass_threads,
		.gone = !err && !seen->pass_tgid,
		.execed = seen->pass_execed,
	};
	if (err || !seen->pass_last)
		return err;
	if (!waits->attached)
		free_ended(waits, pid);
	stall_ignored_passed(waits, pid);
	return err;
}

const struct stall_pass *stall_bpf_waits_passed(const struct stall_bpf_waits *waits, size_t slot)
{
	const struct stall_pass *pass = slot < waits->slot_count ? &waits->passes[slot] : NULL;

	return pass && pass->task && waits->slots[slot].tid ? pass : NULL;
}

// SPDX-License-Identifier: Apache-2.0
#include "snapshot/perf_record.h"

#include <asm/perf_regs.h>
#include <string.h>

// Bits of asm/perf_regs.h with their DWARF numbers. The kernel writes them by ascending bit.
static const struct {
	int bit;
	int dwarf;
} sampled_regs[] = {
	{PERF_REG_X86_AX, 0},	{PERF_REG_X86_BX, 3},	{PERF_REG_X86_CX, 2},
	{PERF_REG_X86_DX, 1},	{PERF_REG_X86_SI, 4},	{PERF_REG_X86_DI, 5},
	{PERF_REG_X86_BP, 6},	{PERF_REG_X86_SP, 7},	{PERF_REG_X86_IP, 16},
	{PERF_REG_X86_R8, 8},	{PERF_REG_X86_R9, 9},	{PERF_REG_X86_R10, 10},
	{PERF_REG_X86_R11, 11}, {PERF_REG_X86_R12, 12}, {PERF_REG_X86_R13, 13},
	{PERF_REG_X86_R14, 14}, {PERF_REG_X86_R15, 15},
};
#define SAMPLED_REGS (sizeof(sampled_regs) / sizeof(sampled_regs[0]))

static uint64_t regs_mask(void)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < SAMPLED_REGS; i++)
		mask |= 1ULL << sampled_regs[i].bit;
	return mask;
}

void stall_perf_attr(uint64_t clock, uint64_t period_ns, size_t max_stack,
		     struct perf_event_attr *ret)
{
	*ret = (struct perf_event_attr){
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(*ret),
		.config = clock,
		.sample_period = period_ns,
		.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_REGS_USER |
			       PERF_SAMPLE_STACK_USER,
		.sample_regs_user = regs_mask(),
		// Below 64 KiB and a multiple of 8 (perf_copy_attr).
		.sample_stack_user = max_stack < 65528 ? (uint32_t)max_stack & ~7U : 65528,
		.sample_max_stack = STALL_KERNEL_FRAMES,
		.disabled = 1,
		.exclude_hv = 1,
		.exclude_callchain_user = 1,
	};
}

// What is left of one record.
struct record {
	const uint8_t *at, *end;
};

static bool take(struct record *record, void *ret, size_t size)
{
	if ((size_t)(record->end - record->at) < size)
		return false;
	memcpy(ret, record->at, size);
	record->at += size;
	return true;
}

static bool take_callchain(struct record *record, struct stall_thread *thread)
{
	uint64_t count, address;
	bool kernel = false;

	thread->kernel_frame_count = 0;
	if (!take(record, &count, sizeof(count)))
		return false;
	for (uint64_t i = 0; i < count; i++) {
		if (!take(record, &address, sizeof(address)))
			return false;
		if (address >= PERF_CONTEXT_MAX)
			kernel = address == (uint64_t)PERF_CONTEXT_KERNEL;
		else if (kernel && thread->kernel_frame_count < STALL_KERNEL_FRAMES)
			thread->kernel_frames[thread->kernel_frame_count++] = address;
	}
	return true;
}

static bool take_regs(struct record *record, struct stall_thread *thread)
{
	uint64_t abi, value;

	if (!take(record, &abi, sizeof(abi)) || abi != PERF_SAMPLE_REGS_ABI_64)
		return false;
	thread->regs.valid = 0;
	for (size_t i = 0; i < SAMPLED_REGS; i++) {
		if (!take(record, &value, sizeof(value)))
			return false;
		thread->regs.value[sampled_regs[i].dwarf] = value;
		thread->regs.valid |= 1U << sampled_regs[i].dwarf;
	}
	return true;
}

static bool take_stack(struct record *record, struct stall_arena *arena,
		       const struct stall_maps *maps, struct stall_thread *thread)
{
	uint64_t size, used;
	const uint8_t *bytes;

	if (!take(record, &size, sizeof(size)) || size > (uint64_t)(record->end - record->at))
		return false;
	bytes = record->at;
	record->at += size;
	// What could be copied of `size`; the rest is filler.
	if (!size || !take(record, &used, sizeof(used)) || used > size)
		return false;
	// Neighbouring mappings may follow.
	uint64_t sp = thread->regs.value[STALL_REG_SP],
		 end = stall_stack_end(maps, sp, thread->fs_base);
	if (end > sp && end - sp < used)
		used = end - sp;
	thread->stack = stall_arena_alloc(arena, used);
	thread->stack_address = sp;
	thread->stack_size = thread->stack ? used : 0;
	if (thread->stack)
		memcpy(thread->stack, bytes, used);
	return true;
}

bool stall_perf_ids(const uint8_t *at, const uint8_t *end, uint32_t ret[2])
{
	struct record record = {at, end};

	return take(&record, ret, 2 * sizeof(*ret));
}

// The order of the parts: perf_event_open(2), PERF_RECORD_SAMPLE.
bool stall_perf_take(const uint8_t *at, const uint8_t *end, const struct stall_snapshot *snapshot,
		     struct stall_thread *thread)
{
	struct record record = {at, end};
	struct stall_thread taken = *thread;
	uint32_t ids[2]; // pid, tid

	if (!take(&record, ids, sizeof(ids)) || (pid_t)ids[1] != thread->tid ||
	    !take_callchain(&record, &taken) || !take_regs(&record, &taken) ||
	    !take_stack(&record, snapshot->arena, snapshot->processes[thread->process].maps,
			&taken))
		return false;
	*thread = taken;
	return true;
}

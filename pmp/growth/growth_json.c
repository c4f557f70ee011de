// SPDX-License-Identifier: Apache-2.0
#include "growth/growth_json.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "growth/growth_state.h"

static const char *const kinds[STALL_GROWTH_KINDS] = {
	[STALL_GROWTH_USER] = "touch",
	[STALL_GROWTH_KERNEL] = "call",
	[STALL_GROWTH_POPULATE] = "populate",
};
static const char *const causes[STALL_GROWTH_LOST_CAUSES] = {
	[STALL_GROWTH_NO_ROOM] = "faults_no_room",
	[STALL_GROWTH_NO_STACK] = "stacks_unreadable",
	[STALL_GROWTH_STACK_ROOM] = "stacks_no_room",
	[STALL_GROWTH_NESTED] = "faults_nested",
};

static void begin(struct stall_json *json, const char *type)
{
	stall_json_open(json, '{');
	stall_json_member_string(json, "schema", STALL_GROWTH_SCHEMA);
	stall_json_member_string(json, "type", type);
}

static void end(struct stall_json *json)
{
	stall_json_close(json, '}');
	stall_json_newline(json);
}

static void write_process(const struct stall_growth *growth, struct stall_json *json)
{
	const struct stall_wait_process *process = &growth->processes.processes[0];

	stall_json_member_int(json, "pid", process->pid);
	stall_json_member_string(json, "comm", process->comm);
	stall_json_member_string(json, "exe", process->exe);
}

static void write_program(struct stall_json *json, const char *name, const char *reason)
{
	stall_json_open(json, '{');
	stall_json_member_string(json, "name", name);
	stall_json_member_bool(json, "works", !reason);
	stall_json_member_string(json, "reason", reason);
	stall_json_close(json, '}');
}

static void write_programs(const struct stall_growth *growth, struct stall_json *json)
{
	struct stall_bpf_growth_programs programs = stall_bpf_growth_programs(growth->bpf);

	stall_json_key(json, "programs");
	stall_json_open(json, '[');
	write_program(json, "page_fault_user", NULL);
	write_program(json, "page_fault_kernel", programs.no_kernel);
	write_program(json, "rss_stat", programs.no_populate);
	stall_json_close(json, ']');
}

static void write_memory(struct stall_json *json, const char *key,
			 const struct stall_growth_mappings *mappings)
{
	stall_json_key(json, key);
	stall_json_open(json, '{');
	stall_json_member_uint(json, "rss", mappings->rss);
	stall_json_member_uint(json, "anonymous", mappings->anonymous);
	stall_json_member_uint(json, "swap", mappings->swap);
	stall_json_member_uint(json, "huge", mappings->huge);
	stall_json_member_uint(json, "hugetlb", mappings->hugetlb);
	stall_json_member_uint(json, "mapped", mappings->mapped);
	stall_json_member_uint(json, "mappings", mappings->count);
	stall_json_close(json, '}');
}

void stall_growth_write_ready(const struct stall_growth *growth, struct stall_json *json)
{
	begin(json, "ready");
	write_process(growth, json);
	write_memory(json, "before", &growth->before);
	write_programs(growth, json);
	end(json);
}

// Only those that something refers to, in the order of their numbers.
static void write_stacks(const struct stall_growth *growth, struct stall_json *json,
			 const bool *used)
{
	stall_json_key(json, "stacks");
	stall_json_open(json, '[');
	for (uint32_t i = 1; i <= STALL_MAX_STACKS; i++) {
		size_t count;
		const char *const *frames = stall_wait_stacks_frames(growth->stacks, i, &count);

		if (!used[i])
			continue;
		stall_json_open(json, '{');
		stall_json_member_uint(json, "id", i);
		stall_json_key(json, "frames");
		stall_json_open(json, '[');
		for (size_t j = 0; j < count; j++)
			stall_json_string(json, frames[j]);
		stall_json_close(json, ']');
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
}

static void write_toucher(const struct stall_toucher *toucher, struct stall_json *json)
{
	stall_json_open(json, '{');
	stall_json_member_uint(json, "stack", toucher->stack);
	stall_json_member_int(json, "tid", toucher->tid);
	stall_json_member_string(json, "kind", kinds[toucher->kind]);
	stall_json_member_bool(json, "on_stack", toucher->flags & STALL_GROWTH_ON_STACK);
	stall_json_member_uint(json, "faults", toucher->touched);
	stall_json_member_uint(json, "bytes", toucher->own * STALL_PAGE);
	stall_json_member_uint(json, "hugetlb_bytes", toucher->hugetlb);
	stall_json_member_uint(json, "file_pages", toucher->file);
	stall_json_member_uint(json, "shared_pages", toucher->shared);
	stall_json_member_uint(json, "gone_pages", toucher->gone);
	stall_json_close(json, '}');
}

static void write_touchers(const struct stall_growth *growth, struct stall_json *json)
{
	stall_json_key(json, "touchers");
	stall_json_open(json, '[');
	for (uint32_t i = 0; i < growth->touchers.count; i++)
		write_toucher(&growth->touchers.list[i], json);
	stall_json_close(json, ']');
	stall_json_key(json, "threads");
	stall_json_open(json, '[');
	for (size_t i = 0; i < growth->thread_count; i++) {
		stall_json_open(json, '{');
		stall_json_member_int(json, "tid", growth->threads[i].tid);
		stall_json_member_string(json, "name", growth->threads[i].comm);
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
}

static bool write_counts(const struct stall_growth *growth, struct stall_json *json)
{
	struct stall_bpf_growth_counts counts = stall_bpf_growth_counts(growth->bpf);
	struct stall_wait_unwound_counts unwound = stall_wait_unwinder_counts(growth->unwinder);
	uint64_t lost =
		growth->pages.no_room + growth->touchers.no_room + unwound.no_room + unwound.failed;

	stall_json_key(json, "faults");
	stall_json_open(json, '{');
	for (size_t i = 0; i < STALL_GROWTH_KINDS; i++)
		stall_json_member_uint(json, kinds[i], counts.faults[i]);
	stall_json_close(json, '}');
	stall_json_key(json, "lost");
	stall_json_open(json, '{');
	for (size_t i = 0; i < STALL_GROWTH_LOST_CAUSES; i++) {
		stall_json_member_uint(json, causes[i], counts.lost[i]);
		if (i != STALL_GROWTH_STACK_ROOM)
			lost += counts.lost[i];
	}
	stall_json_member_uint(json, "pages_no_room",
			       growth->pages.no_room + growth->touchers.no_room);
	stall_json_member_uint(json, "stacks_not_kept", unwound.no_room);
	stall_json_member_uint(json, "stacks_not_unwound", unwound.failed);
	stall_json_close(json, '}');
	return lost != 0;
}

static void write_slack(const struct stall_heap_slack *slack, struct stall_json *json)
{
	stall_json_key(json, "malloc");
	stall_json_open(json, '{');
	stall_json_member_string(json, "unknown", slack->unknown);
	if (!slack->unknown) {
		stall_json_member_uint(json, "arenas", slack->arenas);
		stall_json_member_uint(json, "system_bytes", slack->system);
		stall_json_member_uint(json, "free_bytes", slack->free);
		stall_json_member_uint(json, "top_bytes", slack->top);
		stall_json_member_bool(json, "partial", slack->is_partial);
	}
	stall_json_close(json, '}');
}

static void write_end_of_process(const struct stall_growth *growth, struct stall_json *json)
{
	const struct stall_growth_totals *totals = &growth->totals;

	if (growth->ended) {
		stall_json_key(json, "after");
		stall_json_null(json);
		return;
	}
	write_memory(json, "after", &growth->after);
	stall_json_member_uint(json, "added_bytes", totals->added * STALL_PAGE);
	stall_json_member_uint(json, "freed_bytes", totals->freed * STALL_PAGE);
	stall_json_member_uint(json, "seen_bytes", totals->seen * STALL_PAGE);
	stall_json_member_uint(json, "populated_bytes", totals->populated * STALL_PAGE);
	write_slack(&growth->slack, json);
}

void stall_growth_write_end(const struct stall_growth *growth, struct stall_json *json,
			    bool *ret_partial)
{
	_cleanup_free_ bool *used = calloc(STALL_MAX_STACKS + 1, sizeof(*used));
	bool is_cut = growth->before.cut || growth->after.cut || growth->resident_before.cut ||
		      growth->resident_after.cut;

	if (!used) {
		json->failed = true;
		return;
	}
	for (uint32_t i = 0; i < growth->touchers.count; i++)
		used[growth->touchers.list[i].stack] = true;
	used[0] = false;
	begin(json, "end");
	write_process(growth, json);
	stall_json_key(json, "seconds");
	char text[32];
	int size = snprintf(text, sizeof(text), "%.3f",
			    (double)(growth->ended_ns - growth->started_ns) / 1e9);
	stall_json_raw(json, text, (size_t)size);
	stall_json_member_bool(json, "ended", growth->ended);
	stall_json_member_bool(json, "sampled", growth->pages.is_sampled);
	stall_json_member_bool(json, "cut", is_cut);
	write_memory(json, "before", &growth->before);
	write_end_of_process(growth, json);
	*ret_partial = write_counts(growth, json) || growth->ended || is_cut;
	write_programs(growth, json);
	write_stacks(growth, json, used);
	write_touchers(growth, json);
	end(json);
}

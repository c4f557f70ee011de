// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker_unwind.h"

#include <stdlib.h>
#include <string.h>

#include "unwind/unwind.h"
#include "unwind/unwound.h"

#define MAX_LIVE_PAGES_STACK 64
#define MAX_LIVE_PAGES_JOB 8192

// The result for a PC of a process in this job: found once, used in many stacks.
struct job_site {
	uint64_t pc;
	uint32_t process;
	bool used, exact, bad_cfi, outermost;
	uint32_t frame;
	const struct stall_row *row;
};

struct stall_site_table {
	struct job_site *sites;
	size_t count, capacity; // a power of two
};

static size_t hash(uint64_t pc, uint32_t process, bool exact)
{
	uint64_t key = (pc * 2 + exact) * 0x9e3779b97f4a7c15ULL + process * 0xc2b2ae3d27d4eb4fULL;

	return (size_t)(key ^ (key >> 31));
}

static struct job_site *find_slot(struct job_site *sites, size_t capacity, uint64_t pc,
				  uint32_t process, bool exact)
{
	size_t i = hash(pc, process, exact) & (capacity - 1);

	while (sites[i].used &&
	       (sites[i].pc != pc || sites[i].process != process || sites[i].exact != exact))
		i = (i + 1) & (capacity - 1);
	return &sites[i];
}

static bool grow(struct stall_site_table *table)
{
	size_t capacity = table->capacity ? table->capacity * 2 : 4096;
	struct job_site *grown = calloc(capacity, sizeof(*grown));

	if (!grown)
		return false;
	for (size_t i = 0; i < table->capacity; i++) {
		const struct job_site *site = &table->sites[i];

		if (site->used)
			*find_slot(grown, capacity, site->pc, site->process, site->exact) = *site;
	}
	free(table->sites);
	table->sites = grown;
	table->capacity = capacity;
	return true;
}

static const struct stall_protocol_mapping *find_mapping(const struct stall_worker_state *state,
							 uint32_t process, uint64_t pc)
{
	const struct stall_protocol_process *p = &state->processes[process];
	const struct stall_protocol_mapping *mappings = state->mappings + p->first_mapping;
	size_t low = 0, high = p->mapping_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (mappings[middle].end <= pc)
			low = middle + 1;
		else
			high = middle;
	}
	return low < p->mapping_count && mappings[low].start <= pc ? &mappings[low] : NULL;
}

// glibc before 2.26, like others, ends unwind information where clone(2) has made the new thread:
// there are no frames above these.
static bool is_thread_start(const struct stall_name *name)
{
	static const char *const names[] = {"clone", "__clone", "clone3", "__clone3", "_start"};

	for (size_t i = 0; name && i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(name->symbol, names[i]) == 0)
			return true;
	}
	return false;
}

static void name_frame(struct stall_worker_state *state, struct stall_protocol_frame *frame,
		       struct stall_name *name)
{
	if (name->stamp != state->jobs) {
		name->stamp = state->jobs;
		name->symbol_at = stall_worker_string(state, name->symbol);
		name->linkage_at = name->linkage ? stall_worker_string(state, name->linkage) : 0;
	}
	frame->symbol = name->symbol_at;
	frame->linkage = name->linkage_at;
	frame->symbol_offset = frame->offset - name->address;
}

static void find_in_module(struct stall_worker_state *state,
			   const struct stall_protocol_mapping *mapping, struct job_site *site,
			   struct stall_protocol_frame *frame)
{
	struct stall_binary *binary = stall_worker_binary(state, mapping->module);
	uint64_t bias = state->states[mapping->module].bias;

	frame->module = state->modules[mapping->module].module;
	frame->offset = site->pc - bias;
	if (!binary)
		return;
	// Parts of a file can be mapped apart (dlmopen, a file mapped twice).
	_cleanup_error_ struct stall_error *err =
		stall_elf_bias(binary->elf, mapping->start, mapping->offset, &bias);
	if (err)
		return;
	frame->offset = site->pc - bias;
	state->job->current_module = mapping->module + 1;
	const struct stall_site *known = stall_binary_site(binary, frame->offset, site->exact);
	state->job->current_module = 0;
	if (!known)
		return;
	site->row = known->row;
	site->bad_cfi = known->bad_cfi;
	site->outermost = !known->row && is_thread_start(known->name);
	if (known->name)
		name_frame(state, frame, known->name);
}

// NULL: no room or no memory.
static const struct job_site *get_site(struct stall_worker_state *state, uint32_t process,
				       uint64_t pc, bool exact)
{
	struct stall_site_table *table = state->sites;
	struct stall_protocol_job *job = state->job;

	if (table->count * 2 >= table->capacity && !grow(table))
		return NULL;
	struct job_site *site = find_slot(table->sites, table->capacity, pc, process, exact);
	if (site->used)
		return site;
	if (job->frame_count == job->frame_capacity)
		return NULL;
	struct stall_protocol_frame frame = {.pc = pc,
					     .process = process,
					     .module = STALL_NO_MODULE};
	*site = (struct job_site){.pc = pc,
				  .process = process,
				  .used = true,
				  .exact = exact,
				  .frame = (uint32_t)job->frame_count};
	// A return address may be the first byte after its mapping.
	const struct stall_protocol_mapping *mapping =
		find_mapping(state, process, exact ? pc : pc - 1);
	if (mapping)
		find_in_module(state, mapping, site, &frame);
	state->frames[job->frame_count++] = frame;
	table->count++;
	return site;
}

struct live {
	struct stall_worker_state *state;
	uint32_t process;
	uint32_t reads; // words
	size_t pages;	// requested for this stack
};

static const struct stall_live_page *get_page(struct live *live, uint64_t address)
{
	struct stall_worker_state *state = live->state;
	size_t slot =
		hash(address / STALL_PROTOCOL_PAGE, live->process, false) & (STALL_LIVE_PAGES - 1);
	struct stall_live_page *page = &state->pages[slot];
	struct stall_protocol_message answer, question = {
						      .type = STALL_PROTOCOL_READ,
						      .process = live->process,
						      .address = address,
						      .size = STALL_PROTOCOL_PAGE,
					      };
	int fd;

	if (page->address == address && page->process == live->process)
		return page;
	if (live->pages == MAX_LIVE_PAGES_STACK || state->pages_read == MAX_LIVE_PAGES_JOB)
		return NULL;
	live->pages++;
	state->pages_read++;
	page->address = UINT64_MAX;
	if (!stall_worker_ask(state, &question, &answer, page->data, &fd))
		return NULL;
	page->address = address;
	page->process = live->process;
	page->size =
		answer.size < STALL_PROTOCOL_PAGE ? (uint32_t)answer.size : STALL_PROTOCOL_PAGE;
	return page;
}

static bool read_live(void *arg, uint64_t address, uint64_t *ret)
{
	struct live *live = arg;
	uint8_t bytes[8];

	if (address > UINT64_MAX - sizeof(bytes))
		return false;
	for (size_t done = 0; done < sizeof(bytes);) {
		uint64_t at = address + done, in_page = at & (STALL_PROTOCOL_PAGE - 1);
		const struct stall_live_page *page = get_page(live, at - in_page);
		size_t part = STALL_PROTOCOL_PAGE - in_page;

		if (part > sizeof(bytes) - done)
			part = sizeof(bytes) - done;
		if (!page || in_page + part > page->size)
			return false;
		memcpy(bytes + done, page->data + in_page, part);
		done += part;
	}
	memcpy(ret, bytes, sizeof(bytes));
	live->reads++;
	return true;
}

// Whether there is a return address, even if it is 0: by its row the frame is not the outermost.
static bool has_caller(const struct stall_row *row)
{
	for (uint8_t i = 0; i < row->rule_count; i++)
		if (row->rules[i].reg == STALL_REG_PC)
			return row->rules[i].kind != STALL_RULE_UNDEFINED;
	return false;
}

static enum stall_unwind_end end_of_step(enum stall_step step)
{
	switch (step) {
	case STALL_STEP_OUTERMOST:
		return STALL_UNWIND_COMPLETE;
	case STALL_STEP_NO_REGISTERS:
		return STALL_UNWIND_NO_REGISTERS;
	case STALL_STEP_NO_MEMORY:
		return STALL_UNWIND_NO_MEMORY;
	default:
		return STALL_UNWIND_BAD_CFI;
	}
}

static enum stall_unwind_end end_of_site(const struct job_site *site)
{
	if (site->outermost)
		return STALL_UNWIND_COMPLETE;
	return site->bad_cfi ? STALL_UNWIND_BAD_CFI : STALL_UNWIND_NO_CFI;
}

static enum stall_unwind_end walk(struct stall_worker_state *state, uint32_t process,
				  struct stall_regs *regs, const struct stall_stack_memory *memory,
				  const struct live *live, uint32_t *ret_count)
{
	struct stall_protocol_job *job = state->job;
	bool exact = true;

	for (*ret_count = 0; *ret_count < STALL_MAX_FRAMES;) {
		const struct job_site *site =
			get_site(state, process, regs->value[STALL_REG_PC], exact);

		if (!site || job->index_count == job->index_capacity)
			return STALL_UNWIND_LIMIT;
		state->indexes[job->index_count++] = site->frame;
		++*ret_count;
		if (!site->row)
			return end_of_site(site);
		exact = site->row->signal;
		uint32_t reads = live->reads;
		enum stall_step step = stall_unwind_step(site->row, regs, memory, regs);
		// Live memory may have been cleared: a 0 in it is no end of the stack.
		if (step == STALL_STEP_OUTERMOST && live->reads != reads && has_caller(site->row))
			return STALL_UNWIND_NO_MEMORY;
		if (step != STALL_STEP_CALLER)
			return end_of_step(step);
	}
	return STALL_UNWIND_LIMIT;
}

static void unwind_thread(struct stall_worker_state *state, size_t i)
{
	const struct stall_protocol_thread *thread = &state->threads[i];
	struct stall_protocol_stack *stack = &state->stacks[i];
	struct live live = {.state = state, .process = thread->process};
	struct stall_regs regs = thread->regs;
	struct stall_stack_memory memory = {
		.copy = state->stacks_base + thread->stack,
		.address = thread->stack_address,
		.size = thread->stack_size,
		.read = read_live,
		.arg = &live,
	};

	stack->first = state->job->index_count;
	stack->end = STALL_UNWIND_NOT_TRIED;
	if (regs.valid & (1U << STALL_REG_PC))
		stack->end = walk(state, thread->process, &regs, &memory, &live, &stack->count);
	stack->live_reads = live.reads;
	stack->done = 1;
}

void stall_worker_job_unwind(struct stall_worker_state *state)
{
	struct stall_site_table table = {};

	state->sites = &table;
	for (size_t i = 0; i < STALL_LIVE_PAGES; i++)
		state->pages[i].address = UINT64_MAX;
	for (size_t i = 0; i < state->job->thread_count && !stall_worker_late(state); i++)
		unwind_thread(state, i);
	free(table.sites);
	state->sites = NULL;
}

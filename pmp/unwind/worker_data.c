// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "unwind/demangle.h"
#include "unwind/worker_state.h"

static bool loads_address(const struct stall_elf *elf, uint64_t address)
{
	for (size_t i = 0; i < elf->segment_count; i++) {
		const Elf64_Phdr *segment = &elf->segments[i];

		if (segment->p_type == PT_LOAD && address - segment->p_vaddr < segment->p_memsz)
			return true;
	}
	return false;
}

// Data lies in other mappings than code, and partly in anonymous ones (.bss): the program headers
// of each module tell.
static bool find_object(struct stall_worker_state *state, uint32_t module, uint64_t address,
			struct stall_symbol *ret)
{
	struct stall_binary *binary = stall_worker_binary(state, module);
	uint64_t offset = address - state->states[module].bias;

	if (!binary || !loads_address(binary->elf, offset))
		return false;
	state->job->at_work_on = module + 1;
	bool found = stall_symbols_find_object(binary->symbols, offset, ret);
	state->job->at_work_on = 0;
	if (found)
		ret->address += state->states[module].bias;
	return found;
}

static void name_query(struct stall_worker_state *state, struct stall_wire_query *query)
{
	const struct stall_wire_process *process = &state->processes[query->process];
	struct stall_symbol symbol;

	for (uint32_t i = 0; i < process->module_count; i++) {
		if (!find_object(state, process->first_module + i, query->address, &symbol))
			continue;
		char *demangled = stall_demangle(symbol.linkage);
		query->found = stall_worker_string(state, demangled ? demangled : symbol.linkage);
		query->offset = query->address - symbol.address;
		query->size = symbol.size;
		free(demangled);
		free(symbol.linkage);
		return;
	}
}

void stall_worker_name_all(struct stall_worker_state *state)
{
	for (size_t i = 0; i < state->job->query_count && !stall_worker_late(state); i++)
		name_query(state, &state->queries[i]);
}

static bool find_in(struct stall_worker_state *state, uint32_t module, const char *name,
		    struct stall_wire_query *query)
{
	struct stall_binary *binary = stall_worker_binary(state, module);
	uint64_t address, size;

	if (!binary)
		return false;
	state->job->at_work_on = module + 1;
	bool found = stall_binary_find_object(binary, name, &address, &size);
	state->job->at_work_on = 0;
	if (!found)
		return false;
	query->found = 1;
	query->address = address + state->states[module].bias;
	query->size = size;
	return true;
}

static void find_query(struct stall_worker_state *state, struct stall_wire_query *query)
{
	const struct stall_wire_process *process = &state->processes[query->process];
	const char *name = (char *)state->child->region + query->name;

	// The main program first: what it copied out of a library ("copy relocation") counts.
	if (process->main_module != UINT32_MAX && find_in(state, process->main_module, name, query))
		return;
	for (uint32_t i = 0; i < process->module_count; i++) {
		uint32_t module = process->first_module + i;

		if (module != process->main_module && find_in(state, module, name, query))
			return;
	}
}

void stall_worker_find(struct stall_worker_state *state)
{
	for (size_t i = 0; i < state->job->query_count && !stall_worker_late(state); i++)
		find_query(state, &state->queries[i]);
}

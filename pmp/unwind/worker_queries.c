// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker_queries.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/lengths.h"
#include "unwind/demangle.h"

/* Data. */

static bool loads_address(const struct stall_elf *elf, uint64_t address)
{
	for (size_t i = 0; i < elf->segment_count; i++) {
		const Elf64_Phdr *segment = &elf->segments[i];

		if (segment->p_type == PT_LOAD && address - segment->p_vaddr < segment->p_memsz)
			return true;
	}
	return false;
}

// Data is in other mappings than code, and partly in anonymous ones (.bss): the program headers of
// each module show where.
static bool find_object(struct stall_worker_state *state, uint32_t module, uint64_t address,
			struct stall_symbol *ret)
{
	struct stall_binary *binary = stall_worker_binary(state, module);
	uint64_t offset = address - state->states[module].bias;

	if (!binary || !loads_address(binary->elf, offset))
		return false;
	state->job->current_module = module + 1;
	bool found = stall_symbols_find_object(binary->symbols, offset, ret);
	state->job->current_module = 0;
	if (found)
		ret->address += state->states[module].bias;
	return found;
}

static void name_query(struct stall_worker_state *state, struct stall_protocol_query *query)
{
	const struct stall_protocol_process *process = &state->processes[query->process];
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

void stall_worker_job_name_data(struct stall_worker_state *state)
{
	for (size_t i = 0; i < state->job->query_count && !stall_worker_late(state); i++)
		name_query(state, &state->queries[i]);
}

static bool find_in(struct stall_worker_state *state, uint32_t module, const char *name,
		    struct stall_protocol_query *query)
{
	struct stall_binary *binary = stall_worker_binary(state, module);
	uint64_t address, size;

	if (!binary)
		return false;
	state->job->current_module = module + 1;
	bool found = stall_binary_find_object(binary, name, &address, &size);
	state->job->current_module = 0;
	if (!found)
		return false;
	query->found = 1;
	query->address = address + state->states[module].bias;
	query->size = size;
	return true;
}

static void find_query(struct stall_worker_state *state, struct stall_protocol_query *query)
{
	const struct stall_protocol_process *process = &state->processes[query->process];
	const char *name = (char *)state->region + query->name;

	// The main program first: its copy of a library's object ("copy relocation") is the one in
	// use.
	if (process->main_module != UINT32_MAX && find_in(state, process->main_module, name, query))
		return;
	if (query->offset == STALL_PROTOCOL_MAIN_ONLY)
		return;
	for (uint32_t i = 0; i < process->module_count; i++) {
		uint32_t module = process->first_module + i;

		if (module != process->main_module && find_in(state, module, name, query))
			return;
	}
}

void stall_worker_job_find_data(struct stall_worker_state *state)
{
	for (size_t i = 0; i < state->job->query_count && !stall_worker_late(state); i++)
		find_query(state, &state->queries[i]);
}

/* Functions. */

struct search {
	struct stall_worker_state *state;
	struct stall_binary *binary;
	uint32_t module; // of the job
};

// The file offset of a code address, which the kernel's uprobes need.
static bool file_offset(const struct stall_elf *elf, uint64_t address, uint64_t *ret)
{
	for (size_t i = 0; i < elf->segment_count; i++) {
		const Elf64_Phdr *segment = &elf->segments[i];

		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X) ||
		    address < segment->p_vaddr || address - segment->p_vaddr >= segment->p_filesz)
			continue;
		return stall_add(address - segment->p_vaddr, segment->p_offset, ret);
	}
	return false;
}

// Whether the kernel emulates the instruction (arch/x86/kernel/uprobes.c: push, nop, calls and
// jumps) instead of single-stepping it, which takes an exception more.
static bool is_emulated(const uint8_t *code)
{
	if (code[0] == 0x41) // REX.B
		return code[1] >= 0x50 && code[1] <= 0x57;
	if (code[0] == 0x0f)
		return code[1] >= 0x80 && code[1] <= 0x8f;
	return (code[0] >= 0x50 && code[0] <= 0x57) || (code[0] >= 0x70 && code[0] <= 0x7f) ||
	       code[0] == 0x90 || code[0] == 0xe8 || code[0] == 0xe9 || code[0] == 0xeb;
}

// The place of the uprobe: behind an ENDBR64. A breakpoint inside an instruction would end the
// server, and symbols may be of other files than the mapped one: its unwind entries decide.
static bool find_place(const struct stall_binary *binary, uint64_t address,
		       struct stall_protocol_query *ret)
{
	static const uint8_t endbr[] = {0xf3, 0x0f, 0x1e, 0xfa};
	uint8_t code[8];
	uint64_t offset;

	if (!stall_cfi_starts_at(binary->cfi, address) ||
	    !file_offset(binary->elf, address, &offset))
		return false;
	struct stall_error *err = stall_elf_read(binary->elf, offset, code, sizeof(code));
	if (err) {
		stall_error_destroy(err);
		return false;
	}
	size_t skip = memcmp(code, endbr, sizeof(endbr)) == 0 ? sizeof(endbr) : 0;
	ret->address = offset + skip;
	ret->offset = skip;
	ret->size = is_emulated(code + skip) ? 0 : STALL_PROTOCOL_STEPPED;
	return true;
}

// "f.constprop.0.isra.1" is a clone of f. A suffix of link-time optimisation only distinguishes two
// static functions.
static bool is_clone(const char *suffix)
{
	return *suffix == '.' && strncmp(suffix, ".lto_priv.", 10) != 0 &&
	       strncmp(suffix, ".llvm.", 6) != 0;
}

static bool matches(const char *pattern, const char *base)
{
	size_t literal = strcspn(pattern, "*?[");

	// Nearly every name fails here.
	return strncmp(pattern, base, literal) == 0 && fnmatch(pattern, base, 0) == 0;
}

// An alias of a place that is known, or one place too many, is left out, and so are refused symbols
// of a file but one.
static struct stall_protocol_query *add_place(struct stall_protocol_query *places,
					      const struct stall_protocol_query *place)
{
	for (size_t i = 0; i < STALL_PROTOCOL_PLACES; i++) {
		if (places[i].found == place->found && places[i].address == place->address)
			return NULL;
		if (places[i].found)
			continue;
		places[i].found = place->found;
		places[i].address = place->address;
		places[i].offset = place->offset;
		places[i].size = place->size;
		return &places[i];
	}
	return NULL;
}

static void visit(void *arg, const char *name, uint64_t address)
{
	const struct search *search = arg;
	const char *region = (char *)search->state->region;
	size_t length = strcspn(name, ".@");
	const char *suffix = name + length;
	struct stall_protocol_query place = {.found = search->module + 1};
	char base[512];

	// The cold part of a function is jumped to, never called.
	if (length >= sizeof(base) || strstr(suffix, ".cold"))
		return;
	memcpy(base, name, length);
	base[length] = 0;
	for (size_t i = 0; i < search->state->job->query_count; i += STALL_PROTOCOL_PLACES) {
		struct stall_protocol_query *places = &search->state->queries[i];

		if (!matches(region + places->name, base))
			continue;
		if (find_place(search->binary, address, &place)) {
			place.size |= is_clone(suffix) ? STALL_PROTOCOL_CLONE : 0;
			add_place(places, &place);
			continue;
		}
		place.address = UINT64_MAX;
		struct stall_protocol_query *refused = add_place(places, &place);
		if (refused)
			refused->symbol = stall_worker_string(search->state, name);
	}
}

void stall_worker_job_find_functions(struct stall_worker_state *state)
{
	// All queries of a job are of one process.
	const struct stall_protocol_process *process = &state->processes[state->queries[0].process];
	struct search search = {.state = state};

	for (uint32_t i = 0; i < process->module_count && !stall_worker_late(state); i++) {
		search.module = process->first_module + i;
		search.binary = stall_worker_binary(state, search.module);
		if (!search.binary)
			continue;
		state->job->current_module = search.module + 1;
		// A table that cannot be read names nothing.
		stall_error_destroy(
			stall_symbols_each_function(search.binary->symbols, visit, &search));
		state->job->current_module = 0;
	}
}

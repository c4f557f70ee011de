// SPDX-License-Identifier: Apache-2.0
// The input is an ELF file of a target: its headers, symbol tables, names and unwind information.
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "step_frames.h"
#include "unwind/binary.h"

#define SAMPLES 128

static void look_up(struct stall_binary *binary, uint64_t address, const uint8_t *data, size_t size)
{
	struct stall_symbol symbol;

	for (int exact = 0; exact < 2; exact++) {
		const struct stall_site *site = stall_binary_site(binary, address, exact);

		if (site && site->row)
			step_frames(site->row, data, size, 16);
		// The names are strings: reading one to its end must be sound.
		if (site && site->name && strlen(site->name->symbol) > STALL_MAX_LINKAGE)
			abort();
	}
	if (stall_symbols_find_object(binary->symbols, address, &symbol)) {
		if (address - symbol.address >= symbol.size)
			abort();
		free(symbol.linkage);
	}
}

static void read_all(struct stall_binary *binary, const uint8_t *data, size_t size)
{
	const struct stall_elf *elf = binary->elf;
	struct stall_symbol symbol;
	uint64_t bias;

	for (size_t i = 0; i < elf->segment_count && i < 64; i++) {
		const Elf64_Phdr *segment = &elf->segments[i];

		if (segment->p_type != PT_LOAD)
			continue;
		for (uint64_t k = 0; k < SAMPLES; k++)
			look_up(binary, segment->p_vaddr + segment->p_memsz / SAMPLES * k + k, data,
				size);
		stall_error_destroy(
			stall_elf_bias(elf, 0x550000000000, segment->p_offset & ~4095ULL, &bias));
	}
	for (uint64_t address = 0; address < 4096; address += 64)
		look_up(binary, address, data, size);
	look_up(binary, UINT64_MAX, data, size);
	if (stall_symbols_find_name(binary->symbols, "server_version", &symbol))
		free(symbol.linkage);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stall_elf *elf;
	struct stall_binary *binary;
	struct stall_error *err = stall_elf_open_image(data, size, false, &elf);

	if (!err)
		err = stall_binary_create(elf, NULL, NULL, NULL, &binary);
	if (err) {
		stall_error_destroy(err);
		return 0;
	}
	read_all(binary, data, size);
	stall_binary_destroy(binary);
	return 0;
}

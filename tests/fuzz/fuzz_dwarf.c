// SPDX-License-Identifier: Apache-2.0
// The input is an ELF file with debugging information, of which layouts are read.
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "packs/layouts.h"
#include "packs/structures.h"

// Every line must be KEY=NUMBER, as those who read it expect.
static void check_text(const struct stall_layouts *layouts)
{
	for (const char *at = layouts->text, *end = at + layouts->size; at < end;) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		const char *equals = memchr(at, '=', (size_t)(end - at));

		if (!newline || !equals || equals > newline || equals == at ||
		    equals - at > STALL_LAYOUT_MAX_KEY)
			abort();
		at = newline + 1;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stall_layouts layouts = {};
	struct stall_dwarf *dwarf = NULL;
	struct stall_elf *elf;
	struct stall_error *err = stall_elf_open_image(data, size, false, &elf);

	if (err) {
		stall_error_destroy(err);
		return 0;
	}
	err = stall_dwarf_open(elf, &dwarf);
	if (!err && dwarf)
		err = stall_layouts_read(dwarf, &layouts);
	if (!err && dwarf)
		check_text(&layouts);
	stall_error_destroy(err);
	stall_layouts_deinit(&layouts);
	stall_dwarf_destroy(dwarf);
	stall_elf_destroy(elf);
	return 0;
}

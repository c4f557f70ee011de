// SPDX-License-Identifier: Apache-2.0
// The input is the unwind information of a target's file: 1 and its .eh_frame, or 0 and its
// .debug_frame.
#include <stdlib.h>
#include <string.h>

#include "cfi_image.h"
#include "fuzz.h"
#include "step_frames.h"
#include "unwind/cfi.h"

#define SAMPLES 256

static void look_up(struct stall_cfi *cfi, uint64_t address, const uint8_t *data, size_t size)
{
	bool bad;
	const struct stall_row *row = stall_cfi_row(cfi, address, &bad);

	if (!row)
		return;
	if (bad || row->rule_count == 0 || row->rule_count > STALL_REGS ||
	    row->rules[row->rule_count - 1].reg != STALL_REG_PC)
		abort();
	step_frames(row, data, size, 4);
}

// Any four or eight bytes can be where a function begins.
static void read_all(struct stall_cfi *cfi, const uint8_t *data, size_t size)
{
	size_t stride = size / SAMPLES / 4 * 4 + 4;

	for (size_t at = 0; at + 8 <= size; at += stride) {
		uint64_t absolute;
		int32_t relative;

		memcpy(&absolute, data + at, sizeof(absolute));
		memcpy(&relative, data + at, sizeof(relative));
		look_up(cfi, absolute, data, size);
		look_up(cfi, CFI_IMAGE_ADDRESS + at + (uint64_t)relative, data, size);
		look_up(cfi, CFI_IMAGE_ADDRESS + at + (uint64_t)relative + at % 512, data, size);
	}
	look_up(cfi, 0, data, size);
	look_up(cfi, UINT64_MAX, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	bool is_eh_frame = data[0] & 1;
	struct cfi_image *image = cfi_image_create(is_eh_frame, data + 1, size - 1, 0);
	struct stall_elf *elf = NULL;
	struct stall_cfi *cfi = NULL;
	struct stall_error *err =
		stall_elf_open_image((const uint8_t *)image, sizeof(*image) + size - 1, true, &elf);

	if (!err)
		err = stall_cfi_create(elf, NULL, &cfi);
	if (!err)
		read_all(cfi, data + 1, size - 1);
	stall_error_destroy(err);
	stall_cfi_destroy(cfi);
	stall_elf_destroy(elf);
	return 0;
}

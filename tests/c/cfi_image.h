// SPDX-License-Identifier: Apache-2.0
// An ELF file made in memory, of .eh_frame or .debug_frame alone.
#ifndef STALL_CFI_IMAGE_H
#define STALL_CFI_IMAGE_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CFI_IMAGE_ADDRESS 0x100000 // of .eh_frame

struct cfi_image {
	Elf64_Ehdr ehdr;
	Elf64_Shdr sections[3]; // null, names, the frames
	char names[40];
	uint8_t data[];
};

#define CFI_IMAGE_NAMES "\0.shstrtab\0.eh_frame\0.debug_frame"

// NULL: no memory. Free it.
static inline struct cfi_image *cfi_image_create(bool is_eh_frame, const uint8_t *data, size_t size,
						 uint64_t flags)
{
	struct cfi_image *image = calloc(1, sizeof(*image) + size);

	if (!image)
		return NULL;
	image->ehdr = (Elf64_Ehdr){
		.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
			    EV_CURRENT},
		.e_type = ET_DYN,
		.e_machine = EM_X86_64,
		.e_version = EV_CURRENT,
		.e_ehsize = sizeof(Elf64_Ehdr),
		.e_shoff = offsetof(struct cfi_image, sections),
		.e_shentsize = sizeof(Elf64_Shdr),
		.e_shnum = 3,
		.e_shstrndx = 1,
	};
	image->sections[1] = (Elf64_Shdr){.sh_name = 1,
					  .sh_type = SHT_STRTAB,
					  .sh_offset = offsetof(struct cfi_image, names),
					  .sh_size = sizeof(image->names)};
	image->sections[2] = (Elf64_Shdr){.sh_name = is_eh_frame ? 11 : 21,
					  .sh_type = SHT_PROGBITS,
					  .sh_flags = flags,
					  .sh_addr = is_eh_frame ? CFI_IMAGE_ADDRESS : 0,
					  .sh_offset = offsetof(struct cfi_image, data),
					  .sh_size = size};
	memcpy(image->names, CFI_IMAGE_NAMES, sizeof(CFI_IMAGE_NAMES));
	memcpy(image->data, data, size);
	return image;
}

#endif

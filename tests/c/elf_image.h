// SPDX-License-Identifier: Apache-2.0
// Small ELF files made in memory: .text at 0x1000, .init (executable too) at 0x2000, .data at
// 0x3000, each 0x1000 long and without content, and one symbol table.
#ifndef STALL_ELF_IMAGE_H
#define STALL_ELF_IMAGE_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	IMAGE_TEXT = 1,
	IMAGE_INIT,
	IMAGE_DATA,
	IMAGE_SYMBOLS,
	IMAGE_STRINGS,
	IMAGE_NAMES,
	IMAGE_SECTIONS
};

struct elf_image {
	Elf64_Ehdr ehdr;
	Elf64_Phdr segments[2];
	Elf64_Shdr sections[IMAGE_SECTIONS];
	Elf64_Sym symbols[64];
	char strings[1024];
	char names[64];
};

static inline uint32_t image_name(struct elf_image *image, uint32_t section, const char *name)
{
	Elf64_Shdr *header = &image->sections[section];
	char *text = (char *)image + header->sh_offset;
	uint32_t at = (uint32_t)header->sh_size;

	memcpy(text + at, name, strlen(name) + 1);
	header->sh_size += strlen(name) + 1;
	return at;
}

static inline void image_section(struct elf_image *image, uint32_t index, const char *name,
				 uint32_t type, uint64_t flags, uint64_t address)
{
	image->sections[index] = (Elf64_Shdr){.sh_type = type,
					      .sh_flags = flags,
					      .sh_addr = address,
					      .sh_size = 0x1000};
	image->sections[index].sh_name = image_name(image, IMAGE_NAMES, name);
}

static inline void image_init(struct elf_image *image, uint32_t table)
{
	*image = (struct elf_image){
		.ehdr = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
				     EV_CURRENT},
			 .e_type = ET_DYN,
			 .e_machine = EM_X86_64,
			 .e_version = EV_CURRENT,
			 .e_phoff = offsetof(struct elf_image, segments),
			 .e_shoff = offsetof(struct elf_image, sections),
			 .e_ehsize = sizeof(Elf64_Ehdr),
			 .e_phentsize = sizeof(Elf64_Phdr),
			 .e_phnum = 2,
			 .e_shentsize = sizeof(Elf64_Shdr),
			 .e_shnum = IMAGE_SECTIONS,
			 .e_shstrndx = IMAGE_NAMES},
		.segments = {{.p_type = PT_LOAD,
			      .p_flags = PF_R | PF_X,
			      .p_vaddr = 0x1000,
			      .p_offset = 0x1000,
			      .p_filesz = 0x2000,
			      .p_memsz = 0x2000},
			     {.p_type = PT_LOAD,
			      .p_flags = PF_R | PF_W,
			      .p_vaddr = 0x3000,
			      .p_offset = 0x3000,
			      .p_filesz = 0x1000,
			      .p_memsz = 0x1000}},
		.sections = {[IMAGE_STRINGS] = {.sh_type = SHT_STRTAB,
						.sh_size = 1,
						.sh_offset = offsetof(struct elf_image, strings)},
			     [IMAGE_NAMES] = {.sh_type = SHT_STRTAB,
					      .sh_size = 1,
					      .sh_offset = offsetof(struct elf_image, names)},
			     [IMAGE_SYMBOLS] = {.sh_type = table,
						.sh_link = IMAGE_STRINGS,
						.sh_entsize = sizeof(Elf64_Sym),
						.sh_size = sizeof(Elf64_Sym),
						.sh_offset = offsetof(struct elf_image, symbols)}},
	};
	image_section(image, IMAGE_TEXT, ".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, 0x1000);
	image_section(image, IMAGE_INIT, ".init", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, 0x2000);
	image_section(image, IMAGE_DATA, ".data", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, 0x3000);
}

static inline void image_symbol(struct elf_image *image, const char *name, int bind, int type,
				uint16_t section, uint64_t address, uint64_t size)
{
	Elf64_Shdr *table = &image->sections[IMAGE_SYMBOLS];
	Elf64_Sym *symbol = &image->symbols[table->sh_size / sizeof(*symbol)];

	*symbol = (Elf64_Sym){.st_info = ELF64_ST_INFO(bind, type),
			      .st_shndx = section,
			      .st_value = address,
			      .st_size = size};
	symbol->st_name = image_name(image, IMAGE_STRINGS, name);
	table->sh_size += sizeof(*symbol);
}

#endif

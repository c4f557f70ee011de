// SPDX-License-Identifier: Apache-2.0
#include "unwind/elf_identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define MAX_TEXT (UINT64_C(256) << 20) // a quarter of a second
#define CRC_PREFIX "crc32-"

static const Elf64_Phdr *text_segment(const struct stall_elf *elf)
{
	for (size_t i = 0; i < elf->segment_count; i++) {
		if (elf->segments[i].p_type == PT_LOAD && (elf->segments[i].p_flags & PF_X))
			return &elf->segments[i];
	}
	return NULL;
}

uint64_t stall_elf_text_address(const struct stall_elf *elf)
{
	const Elf64_Phdr *segment = text_segment(elf);

	return segment ? segment->p_vaddr : 0;
}

static bool sum(const struct stall_elf *elf, uint64_t from, uint64_t size, uint32_t *ret)
{
	uint8_t buf[65536];
	uLong crc = 0;

	for (uint64_t at = 0; at < size; at += sizeof(buf)) {
		size_t part = size - at < sizeof(buf) ? (size_t)(size - at) : sizeof(buf);
		struct stall_error *err = stall_elf_read(elf, from + at, buf, part);

		if (err) {
			stall_error_destroy(err);
			return false;
		}
		crc = crc32(crc, buf, (uInt)part);
	}
	*ret = (uint32_t)crc;
	return true;
}

// A debug file's program headers are those of the program, but its sections hold nothing.
static bool has_code(const struct stall_elf *elf)
{
	for (size_t i = 0; i < elf->section_count; i++) {
		const Elf64_Shdr *section = &elf->sections[i];

		if ((section->sh_flags & SHF_EXECINSTR) && section->sh_type == SHT_NOBITS)
			return false;
	}
	return true;
}

bool stall_elf_identity(const struct stall_elf *elf, char ret[STALL_IDENTITY_MAX])
{
	const Elf64_Phdr *segment = text_segment(elf);
	uint32_t crc;

	if (elf->build_id_size) {
		stall_elf_build_id_text(elf, ret);
		return stall_identity_is_valid(ret);
	}
	if (!segment || segment->p_filesz <= sizeof(Elf64_Ehdr) || segment->p_filesz > MAX_TEXT ||
	    !has_code(elf))
		return false;
	if (!sum(elf, segment->p_offset + sizeof(Elf64_Ehdr),
		 segment->p_filesz - sizeof(Elf64_Ehdr), &crc))
		return false;
	snprintf(ret, STALL_IDENTITY_MAX, CRC_PREFIX "%08x-%llx", crc,
		 (unsigned long long)segment->p_filesz);
	return true;
}

bool stall_identity_is_valid(const char *text)
{
	static const char digits[] = "0123456789abcdef";
	size_t length = strnlen(text, STALL_IDENTITY_MAX), prefix = strlen(CRC_PREFIX);

	if (strncmp(text, CRC_PREFIX, prefix) != 0)
		return length >= 4 && length <= 2 * STALL_BUILD_ID_MAX &&
		       strspn(text, digits) == length;
	text += prefix;
	if (strspn(text, digits) != 8 || text[8] != '-')
		return false;
	size_t size = strspn(text + 9, digits);
	return size >= 1 && size <= 16 && !text[9 + size];
}

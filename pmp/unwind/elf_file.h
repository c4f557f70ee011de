// SPDX-License-Identifier: Apache-2.0
// One ELF file, from a descriptor or from memory. The file is hostile and may change while it is
// read: it is read by pread(2), never mapped (a mapping of a file that shrinks raises SIGBUS), and
// every offset and count is checked.
#ifndef STALL_ELF_FILE_H
#define STALL_ELF_FILE_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STALL_MAX_SEGMENTS (1U << 20) // a core file has one a mapping
#define STALL_MAX_SECTIONS (1U << 17)
#define STALL_BUILD_ID_MAX 32

struct stall_elf {
	int fd;		      // owned; -1 for an image
	const uint8_t *image; // not owned, or owned when `owns_image`
	bool owns_image;
	uint64_t size;
	uint16_t type, machine;
	Elf64_Phdr *segments;
	size_t segment_count;
	Elf64_Shdr *sections;
	size_t section_count;
	char *section_names; // NUL-terminated
	size_t section_names_size;
	uint8_t build_id[STALL_BUILD_ID_MAX];
	size_t build_id_size; // 0: none
};

// Takes the descriptor over, on failure too.
struct stall_error *stall_elf_open(int fd, struct stall_elf **ret);
// With `own`, frees the image, on failure too.
struct stall_error *stall_elf_open_image(const uint8_t *image, size_t size, bool own,
					 struct stall_elf **ret);
void stall_elf_destroy(struct stall_elf *elf);
static inline void stall_elf_destroyp(struct stall_elf **elf)
{
	stall_elf_destroy(*elf);
}

// All of [offset, offset + size), or an error.
struct stall_error *stall_elf_read(const struct stall_elf *elf, uint64_t offset, void *buf,
				   size_t size);
// The same into new memory (free it), with a NUL after it; at most `limit` bytes.
struct stall_error *stall_elf_load(const struct stall_elf *elf, uint64_t offset, uint64_t size,
				   size_t limit, uint8_t **ret);

// NULL where there is none.
const Elf64_Shdr *stall_elf_section(const struct stall_elf *elf, const char *name);
const Elf64_Shdr *stall_elf_section_by_type(const struct stall_elf *elf, uint32_t type);

// What to add to the file's virtual addresses, for a mapping of `offset` in the file at `start`.
struct stall_error *stall_elf_bias(const struct stall_elf *elf, uint64_t start, uint64_t offset,
				   uint64_t *ret);

// Hex digits and NUL; "" where there is none.
void stall_elf_build_id_text(const struct stall_elf *elf, char text[2 * STALL_BUILD_ID_MAX + 1]);

struct stall_elf_note {
	uint32_t type;
	const char *name; // not NUL-terminated
	size_t name_size;
	const uint8_t *desc;
	size_t desc_size;
};
// Steps through note data; *position starts at 0. False at the end or at the first torn note.
bool stall_elf_next_note(const uint8_t *data, size_t size, size_t align, size_t *position,
			 struct stall_elf_note *ret);

#endif

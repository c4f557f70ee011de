// SPDX-License-Identifier: Apache-2.0
// The debugging information of one file: its sections, its units, and the tables of
// abbreviations. The file is hostile.
#ifndef STALL_DWARF_SECTIONS_H
#define STALL_DWARF_SECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/elf_file.h"

enum stall_dwarf_section {
	STALL_DWARF_INFO,
	STALL_DWARF_TYPES, // of DWARF 4
	STALL_DWARF_ABBREV,
	STALL_DWARF_STR,
	STALL_DWARF_LINE_STR,
	STALL_DWARF_STR_OFFSETS,
	STALL_DWARF_SECTIONS,
};

struct stall_dwarf_attribute {
	uint32_t name, form;
	int64_t constant; // DW_FORM_implicit_const
};

struct stall_dwarf_abbrev {
	uint32_t tag; // 0: the code is not in use
	bool has_children;
	uint32_t first, count; // of the attributes
};

// The abbreviations of a unit, by their code.
struct stall_dwarf_abbrevs {
	uint64_t offset; // in its section
	struct stall_dwarf_abbrev *list;
	uint32_t count, capacity;
	struct stall_dwarf_attribute *attributes;
	uint32_t attribute_count, attribute_capacity;
};

struct stall_dwarf;

struct stall_dwarf_unit {
	struct stall_dwarf *dwarf;
	enum stall_dwarf_section section; // INFO or TYPES
	uint8_t version, type, address_size, offset_size;
	uint64_t start, end; // in the section
	uint64_t first;	     // its first entry
	uint64_t abbrev_offset;
	uint64_t signature, type_at; // of a type unit: its type, from `start`
	uint64_t str_offsets_base;
};

#define STALL_DWARF_KEPT_ABBREVS 128

struct stall_dwarf {
	uint8_t *data[STALL_DWARF_SECTIONS]; // each with a NUL behind it; NULL: there is none
	size_t size[STALL_DWARF_SECTIONS];
	struct stall_dwarf_unit *units; // of INFO by their start, then those of TYPES
	size_t unit_count, unit_capacity, info_unit_count;
	size_t *by_signature; // type units
	size_t type_unit_count;
	struct stall_dwarf_abbrevs *kept[STALL_DWARF_KEPT_ABBREVS];
	struct stall_dwarf *alt; // what dwz(1) moved to a common file; not owned; NULL: none
	bool is_torn;		 // a unit's header, or what follows it, could not be read
};

// *ret is NULL where the file has no debugging information.
struct stall_error *stall_dwarf_open(const struct stall_elf *elf, struct stall_dwarf **ret);
void stall_dwarf_destroy(struct stall_dwarf *dwarf);
static inline void stall_dwarf_destroyp(struct stall_dwarf **dwarf)
{
	stall_dwarf_destroy(*dwarf);
}

// NULL: there is none.
const struct stall_dwarf_unit *stall_dwarf_unit_at(const struct stall_dwarf *dwarf,
						   enum stall_dwarf_section section,
						   uint64_t offset);
const struct stall_dwarf_unit *stall_dwarf_unit_of(const struct stall_dwarf *dwarf,
						   uint64_t signature);
// Valid until some other tables have been used. NULL: damaged, or memory is missing.
const struct stall_dwarf_abbrevs *stall_dwarf_abbrevs_of(const struct stall_dwarf_unit *unit);

#endif

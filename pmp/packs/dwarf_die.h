// SPDX-License-Identifier: Apache-2.0
// One debugging information entry (DIE), with the attributes that layouts need.
#ifndef STALL_DWARF_DIE_H
#define STALL_DWARF_DIE_H

#include "packs/dwarf_sections.h"

struct stall_dwarf_block {
	const uint8_t *data;
	size_t size;
};

// A reference to a DIE. `unit` NULL: there is none, or it leads nowhere.
struct stall_dwarf_ref {
	const struct stall_dwarf_unit *unit;
	uint64_t offset; // in the section of its unit
};

struct stall_dwarf_die {
	uint32_t tag; // 0: the end of a list of children
	bool has_children;
	uint64_t next;	  // behind it: its first child where it has children
	uint64_t sibling; // 0: unknown
	const char *name; // NULL: none
	struct stall_dwarf_ref type, signature;
	uint64_t byte_size;
	int64_t location;			 // DW_AT_data_member_location
	struct stall_dwarf_block location_block; // the same as an expression
	bool has_byte_size, has_location, is_declaration, is_external, is_virtual, is_bit_field;
	bool is_of_scope; // declared in a namespace or class, and defined here
	bool is_split;	  // its content is in another file (.dwo)
};

// False: it is damaged.
bool stall_dwarf_die_read(const struct stall_dwarf_unit *unit, uint64_t offset,
			  struct stall_dwarf_die *ret);
// Reads the attributes of the unit itself that its other entries depend on.
bool stall_dwarf_unit_prepare(struct stall_dwarf_unit *unit, struct stall_dwarf_die *ret);

// Steps from a DIE to the next one of the same list, over its children. `steps`, of all calls
// together, is decremented for each DIE that is read; false where it is used up, or the DIE damaged.
bool stall_dwarf_die_skip(const struct stall_dwarf_unit *unit, const struct stall_dwarf_die *die,
			  uint64_t *steps, uint64_t *ret_offset);

#endif

// SPDX-License-Identifier: Apache-2.0
// Flattens the members of one structure.
#ifndef STALL_STRUCTURES_H
#define STALL_STRUCTURES_H

#include "packs/dwarf_die.h"

#define STALL_LAYOUT_MAX_KEY 95 // a longer one is left out

// A name of a layout, without blanks: "ns::Class.member.inner".
struct stall_layout_key {
	size_t length;
	char text[STALL_LAYOUT_MAX_KEY + 1];
};

// Adds a name, after the separator where it is not the first. False, and the key is as before: it
// would be too long, or the name has no characters, or some that no key can have.
bool stall_layout_key_add(struct stall_layout_key *key, const char *separator, const char *name);

struct stall_member {
	char *key;
	uint64_t offset;
	uint16_t depth; // members in its key
	uint16_t bases; // base classes on the way to it
};

struct stall_structure {
	struct stall_layout_key name;
	uint64_t size, shape;	      // shape: a hash of its own members
	struct stall_member *members; // by their keys
	size_t count, capacity;
	bool is_typedef; // `name` is another name of it
	bool is_ambiguous, is_cut;
};

void stall_structure_deinit(struct stall_structure *structure);

// The class, structure or union that a type is, by any name. False: it is none, or only declared.
bool stall_structure_resolve(const struct stall_dwarf_ref *type, uint64_t *steps,
			     const struct stall_dwarf_unit **ret_unit,
			     struct stall_dwarf_die *ret_die);
bool stall_structure_is_class(const struct stall_dwarf_die *die);

// A hash of the names and places of its own members: two structures of one name differ in it.
uint64_t stall_structure_shape(const struct stall_dwarf_unit *unit,
			       const struct stall_dwarf_die *die, uint64_t *steps);
// Fills in the members. Those that would be too many are left out, the innermost first. False: out
// of memory.
bool stall_structure_flatten(const struct stall_dwarf_unit *unit, const struct stall_dwarf_die *die,
			     uint64_t *steps, struct stall_structure *structure);

#endif

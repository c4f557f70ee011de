// SPDX-License-Identifier: Apache-2.0
#include "packs/structures.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "packs/dwarf_numbers.h"
#include "unwind/bytes.h"

#define MAX_DEPTH 8 // members in a key
#define MAX_LEVELS 32
#define MAX_NAMES_OF_TYPE 32 // typedefs, const, volatile
#define MAX_FOUND 200000     // members of one structure, before the deepest are left out
#define MAX_KEPT 4000	     // THD of MySQL 9.7 has so many in four levels
#define MAX_OFFSET (1U << 30)
#define MAX_STEPS 2000000 // entries that are read for one structure

void stall_structure_deinit(struct stall_structure *structure)
{
	for (size_t i = 0; i < structure->count; i++)
		free(structure->members[i].key);
	free(structure->members);
	structure->members = NULL;
	structure->count = 0;
}

// Without blanks.
static bool append(struct stall_layout_key *key, const char *text)
{
	for (; *text; text++) {
		if (*text == ' ')
			continue;
		if (*text < ' ' || *text == 0x7f || *text == '=' ||
		    key->length == STALL_LAYOUT_MAX_KEY)
			return false;
		key->text[key->length++] = *text;
	}
	return true;
}

bool stall_layout_key_add(struct stall_layout_key *key, const char *separator, const char *name)
{
	size_t before = key->length;
	bool is_added = !before || append(key, separator);
	size_t start = key->length;

	is_added = is_added && append(key, name) && key->length > start;
	if (!is_added)
		key->length = before;
	key->text[key->length] = '\0';
	return is_added;
}

bool stall_structure_is_class(const struct stall_dwarf_die *die)
{
	return die->tag == DW_TAG_structure_type || die->tag == DW_TAG_class_type ||
	       die->tag == DW_TAG_union_type;
}

static bool is_another_name(uint32_t tag)
{
	return tag == DW_TAG_typedef || tag == DW_TAG_const_type || tag == DW_TAG_volatile_type ||
	       tag == DW_TAG_atomic_type;
}

bool stall_structure_resolve(const struct stall_dwarf_ref *type, uint64_t *steps,
			     const struct stall_dwarf_unit **ret_unit,
			     struct stall_dwarf_die *ret_die)
{
	struct stall_dwarf_ref at = *type;

	for (int i = 0; i < MAX_NAMES_OF_TYPE && at.unit && *steps; i++) {
		--*steps;
		if (!stall_dwarf_die_read(at.unit, at.offset, ret_die))
			return false;
		if (stall_structure_is_class(ret_die) && !ret_die->is_declaration) {
			*ret_unit = at.unit;
			return true;
		}
		if (stall_structure_is_class(ret_die) && ret_die->signature.unit)
			at = ret_die->signature;
		else if (is_another_name(ret_die->tag))
			at = ret_die->type;
		else
			return false;
	}
	return false;
}

// A number, or an expression that adds one to the address of the structure. False: it is found only
// at run time.
static bool read_location(const struct stall_dwarf_die *die, uint64_t *ret)
{
	struct stall_bytes bytes =
		stall_bytes_of(die->location_block.data, die->location_block.size);

	*ret = 0;
	if (!die->has_location)
		return true;
	if (die->location_block.data) {
		if (stall_bytes_number(&bytes, 1) != DW_OP_plus_uconst_location)
			return false;
		*ret = stall_bytes_uleb(&bytes);
		return !bytes.torn && !stall_bytes_left(&bytes) && *ret < MAX_OFFSET;
	}
	*ret = (uint64_t)die->location;
	return die->location >= 0 && die->location < MAX_OFFSET;
}

// A member that each object has at the same place. (DWARF 4 and earlier have static members as
// members, too.)
static bool has_place(const struct stall_dwarf_die *die, uint64_t *ret)
{
	bool is_part = die->tag == DW_TAG_member || die->tag == DW_TAG_inheritance;

	return is_part && !die->is_external && !die->is_declaration && !die->is_virtual &&
	       !die->is_bit_field && read_location(die, ret);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

uint64_t stall_structure_shape(const struct stall_dwarf_unit *unit,
			       const struct stall_dwarf_die *die, uint64_t *steps)
{
	uint64_t hash = mix(die->byte_size, die->tag == DW_TAG_union_type);
	uint64_t offset = die->next, place;
	struct stall_dwarf_die child;

	while (die->has_children && *steps) {
		--*steps;
		if (!stall_dwarf_die_read(unit, offset, &child) || !child.tag)
			break;
		if (has_place(&child, &place)) {
			hash = mix(hash, place);
			for (const char *at = child.name; at && *at; at++)
				hash = mix(hash, (unsigned char)*at);
		}
		if (!stall_dwarf_die_skip(unit, &child, steps, &offset))
			break;
	}
	return hash;
}

struct walk {
	struct stall_structure *structure;
	uint64_t *steps;
	struct stall_layout_key key;
	bool no_memory;
};

// Where a walk is.
struct place {
	size_t key_length;
	uint64_t offset;
	uint16_t depth, bases, levels;
};

static void add_member(struct walk *walk, const struct place *place)
{
	struct stall_structure *structure = walk->structure;

	if (structure->count == MAX_FOUND) {
		structure->is_cut = true;
		return;
	}
	char *key =
		stall_array_reserve(&structure->members, structure->count, 1, &structure->capacity)
			? strndup(walk->key.text, place->key_length)
			: NULL;
	if (!key) {
		walk->no_memory = true;
		return;
	}
	structure->members[structure->count++] = (struct stall_member){
		.key = key,
		.offset = place->offset,
		.depth = place->depth,
		.bases = place->bases,
	};
}

static void walk_members(struct walk *walk, const struct stall_dwarf_unit *unit,
			 const struct stall_dwarf_die *die, const struct place *place);

static void walk_into(struct walk *walk, const struct stall_dwarf_ref *type,
		      const struct place *place)
{
	const struct stall_dwarf_unit *unit;
	struct stall_dwarf_die die;

	if (place->levels < MAX_LEVELS && place->depth < MAX_DEPTH &&
	    stall_structure_resolve(type, walk->steps, &unit, &die))
		walk_members(walk, unit, &die, place);
}

static void walk_member(struct walk *walk, const struct stall_dwarf_die *die,
			const struct place *place)
{
	struct place inside = *place;
	uint64_t offset;

	if (!has_place(die, &offset))
		return;
	inside.offset += offset;
	inside.levels++;
	if (die->tag == DW_TAG_inheritance) {
		inside.bases++;
	} else if (die->name) {
		walk->key.length = place->key_length;
		if (!stall_layout_key_add(&walk->key, ".", die->name))
			return;
		inside.key_length = walk->key.length;
		inside.depth++;
		add_member(walk, &inside);
	}
	walk_into(walk, &die->type, &inside);
}

static void walk_members(struct walk *walk, const struct stall_dwarf_unit *unit,
			 const struct stall_dwarf_die *die, const struct place *place)
{
	struct stall_dwarf_die child;
	uint64_t offset = die->next;

	while (die->has_children && !walk->no_memory && !walk->structure->is_cut) {
		if (!*walk->steps || !stall_dwarf_die_read(unit, offset, &child)) {
			walk->structure->is_cut = true;
			return;
		}
		--*walk->steps;
		if (!child.tag)
			return;
		walk_member(walk, &child, place);
		if (!stall_dwarf_die_skip(unit, &child, walk->steps, &offset)) {
			walk->structure->is_cut = true;
			return;
		}
	}
}

static int compare_members(const void *a, const void *b)
{
	const struct stall_member *x = a, *y = b;
	int order = strcmp(x->key, y->key);

	return order ? order : (x->bases > y->bases) - (x->bases < y->bases);
}

// A member of the class itself hides those of the same name in its bases. Of two bases' members
// none is kept.
static void remove_hidden(struct stall_structure *structure)
{
	size_t kept = 0;

	for (size_t i = 0, next; i < structure->count; i = next) {
		struct stall_member *first = &structure->members[i];
		bool is_clear = true;

		for (next = i + 1; next < structure->count; next++) {
			struct stall_member *other = &structure->members[next];

			if (strcmp(first->key, other->key) != 0)
				break;
			if (other->bases == first->bases && other->offset != first->offset)
				is_clear = false;
			free(other->key);
		}
		if (is_clear)
			structure->members[kept++] = *first;
		else
			free(first->key);
	}
	structure->count = kept;
}

static void remove_deepest(struct stall_structure *structure)
{
	size_t by_depth[MAX_DEPTH + 1] = {}, total = 0, kept = 0;
	unsigned int depth = 0;

	for (size_t i = 0; i < structure->count; i++)
		by_depth[structure->members[i].depth]++;
	while (depth < MAX_DEPTH && total + by_depth[depth + 1] <= MAX_KEPT)
		total += by_depth[++depth];
	for (size_t i = 0; i < structure->count; i++) {
		if (structure->members[i].depth <= depth)
			structure->members[kept++] = structure->members[i];
		else
			free(structure->members[i].key);
	}
	structure->count = kept;
}

bool stall_structure_flatten(const struct stall_dwarf_unit *unit, const struct stall_dwarf_die *die,
			     uint64_t *steps, struct stall_structure *structure)
{
	uint64_t own_steps = *steps < MAX_STEPS ? *steps : MAX_STEPS, all = own_steps;
	struct walk walk = {
		.structure = structure,
		.steps = &own_steps,
		.key = structure->name,
	};
	const struct place place = {.key_length = walk.key.length};

	structure->size = die->byte_size;
	walk_members(&walk, unit, die, &place);
	*steps -= all - own_steps;
	if (walk.no_memory)
		return false;
	if (structure->count)
		qsort(structure->members, structure->count, sizeof(*structure->members),
		      compare_members);
	remove_hidden(structure);
	remove_deepest(structure);
	return true;
}

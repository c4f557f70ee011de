// SPDX-License-Identifier: Apache-2.0
#include "packs/layouts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "packs/dwarf_numbers.h"
#include "packs/layout_names.h"
#include "packs/structures.h"
#include "unwind/pack_format.h"

#define MAX_STRUCTURES 1024
#define MAX_STEPS UINT64_C(200000000) // entries that are read; MariaDB 11.4 has 27 million
#define MAX_NAMESPACES 8

struct reading {
	struct stall_layouts *layouts;
	struct stall_structure *structures;
	size_t count;
	uint64_t steps;
};

static void reading_deinit(struct reading *reading)
{
	for (size_t i = 0; i < reading->count; i++)
		stall_structure_deinit(&reading->structures[i]);
	free(reading->structures);
}

static struct stall_structure *find(const struct reading *reading, const char *name)
{
	for (size_t i = 0; i < reading->count; i++) {
		if (strcmp(reading->structures[i].name.text, name) == 0)
			return &reading->structures[i];
	}
	return NULL;
}

// Most units of a server have the same definitions. A structure's own name comes before a typedef:
// C code of MariaDB knows THD as a stand-in, struct opaque_THD.
static struct stall_error *add(struct reading *reading, const struct stall_layout_key *name,
			       bool is_typedef, const struct stall_dwarf_unit *unit,
			       const struct stall_dwarf_die *die)
{
	struct stall_structure *known = find(reading, name->text);

	if (known && (known->is_typedef == is_typedef ? known->is_ambiguous : is_typedef))
		return NULL;
	uint64_t shape = stall_structure_shape(unit, die, &reading->steps);
	if (known && known->is_typedef == is_typedef) {
		known->is_ambiguous = known->shape != shape;
		return NULL;
	}
	if (!known && reading->count == MAX_STRUCTURES) {
		reading->layouts->is_incomplete = true;
		return NULL;
	}
	if (known)
		stall_structure_deinit(known);
	else
		known = &reading->structures[reading->count++];
	*known = (struct stall_structure){.name = *name, .shape = shape, .is_typedef = is_typedef};
	if (!stall_structure_flatten(unit, die, &reading->steps, known))
		return &stall_enomem;
	reading->layouts->is_incomplete |= known->is_cut;
	return NULL;
}

// `scope`: the namespaces around it.
static struct stall_error *consider(struct reading *reading, const struct stall_layout_key *scope,
				    const struct stall_dwarf_unit *unit,
				    const struct stall_dwarf_die *die)
{
	const struct stall_dwarf_unit *target_unit = unit;
	struct stall_dwarf_die target = *die;
	struct stall_layout_key name = *scope;

	// Another namespace than the one around it would be part of its name.
	if (!die->name || die->is_declaration || die->is_of_scope)
		return NULL;
	if (!stall_layout_key_add(&name, "::", die->name) || !stall_layout_is_wanted(name.text))
		return NULL;
	bool is_typedef = die->tag == DW_TAG_typedef;
	if (is_typedef &&
	    !stall_structure_resolve(&die->type, &reading->steps, &target_unit, &target))
		return NULL;
	// "typedef struct NAME NAME" is no other name.
	if (is_typedef && target.name && strcmp(target.name, die->name) == 0)
		return NULL;
	return target.has_byte_size ? add(reading, &name, is_typedef, target_unit, &target) : NULL;
}

static struct stall_error *scan(struct reading *reading, const struct stall_layout_key *scope,
				const struct stall_dwarf_unit *unit,
				const struct stall_dwarf_die *parent, int levels);

static struct stall_error *scan_namespace(struct reading *reading,
					  const struct stall_layout_key *scope,
					  const struct stall_dwarf_unit *unit,
					  const struct stall_dwarf_die *die, int levels)
{
	struct stall_layout_key inner = *scope;

	// What has no name is of one source file alone.
	if (!die->name || levels == MAX_NAMESPACES ||
	    !stall_layout_key_add(&inner, "::", die->name))
		return NULL;
	return scan(reading, &inner, unit, die, levels + 1);
}

// The members of a unit or of a namespace.
static struct stall_error *scan(struct reading *reading, const struct stall_layout_key *scope,
				const struct stall_dwarf_unit *unit,
				const struct stall_dwarf_die *parent, int levels)
{
	struct stall_error *err = NULL;
	struct stall_dwarf_die die;
	uint64_t offset = parent->next;

	while (!err && parent->has_children) {
		// GCC leaves out the end of the last list.
		if (offset >= unit->end)
			return NULL;
		if (!reading->steps || !stall_dwarf_die_read(unit, offset, &die)) {
			reading->layouts->is_incomplete = true;
			return NULL;
		}
		reading->steps--;
		if (!die.tag)
			return NULL;
		if (stall_structure_is_class(&die) || die.tag == DW_TAG_typedef)
			err = consider(reading, scope, unit, &die);
		else if (die.tag == DW_TAG_namespace)
			err = scan_namespace(reading, scope, unit, &die, levels);
		if (!err && !stall_dwarf_die_skip(unit, &die, &reading->steps, &offset)) {
			reading->layouts->is_incomplete = true;
			return NULL;
		}
	}
	return err;
}

static struct stall_error *scan_units(struct reading *reading, struct stall_dwarf *dwarf)
{
	const struct stall_layout_key outermost = {};
	struct stall_error *err = NULL;
	struct stall_dwarf_die die = {};

	reading->layouts->is_incomplete |= dwarf->is_torn;
	for (size_t i = 0; i < dwarf->unit_count; i++) {
		if (!stall_dwarf_unit_prepare(&dwarf->units[i], &die))
			reading->layouts->is_incomplete = true;
		reading->layouts->is_split |= die.is_split;
	}
	for (size_t i = 0; !err && i < dwarf->unit_count; i++) {
		const struct stall_dwarf_unit *unit = &dwarf->units[i];

		if (stall_dwarf_die_read(unit, unit->first, &die))
			err = scan(reading, &outermost, unit, &die, 0);
	}
	return err;
}

static int compare_structures(const void *a, const void *b)
{
	const struct stall_structure *x = a, *y = b;

	return strcmp(x->name.text, y->name.text);
}

static void write_structure(FILE *file, const struct stall_structure *structure,
			    struct stall_layouts *layouts)
{
	fprintf(file, "%s#size=%" PRIu64 "\n", structure->name.text, structure->size);
	for (size_t i = 0; i < structure->count; i++)
		fprintf(file, "%s=%" PRIu64 "\n", structure->members[i].key,
			structure->members[i].offset);
	layouts->lines += 1 + (uint32_t)structure->count;
	layouts->structures++;
}

static struct stall_error *write_all(struct reading *reading)
{
	struct stall_layouts *layouts = reading->layouts;
	FILE *file = open_memstream(&layouts->text, &layouts->size);

	if (!file)
		return &stall_enomem;
	qsort(reading->structures, reading->count, sizeof(*reading->structures),
	      compare_structures);
	for (size_t i = 0; i < reading->count; i++) {
		const struct stall_structure *structure = &reading->structures[i];

		layouts->ambiguous += structure->is_ambiguous;
		if (structure->is_ambiguous)
			continue;
		// A member adds less than 128 bytes.
		if ((size_t)ftell(file) + (structure->count + 1) * 128 > STALL_PACK_MAX_LAYOUTS)
			layouts->is_incomplete = true;
		else
			write_structure(file, structure, layouts);
	}
	return fclose(file) ? &stall_enomem : NULL;
}

struct stall_error *stall_layouts_read(struct stall_dwarf *dwarf, struct stall_layouts *ret)
{
	struct stall_layouts layouts = {};
	_cleanup_(reading_deinit) struct reading reading = {
		.layouts = &layouts,
		.structures = calloc(MAX_STRUCTURES, sizeof(*reading.structures)),
		.steps = MAX_STEPS,
	};

	if (!reading.structures)
		return &stall_enomem;
	struct stall_error *err = dwarf->alt ? scan_units(&reading, dwarf->alt) : NULL;
	if (!err)
		err = scan_units(&reading, dwarf);
	if (!err)
		err = write_all(&reading);
	if (err) {
		stall_layouts_deinit(&layouts);
		return err;
	}
	*ret = layouts;
	return NULL;
}

void stall_layouts_deinit(struct stall_layouts *layouts)
{
	free(layouts->text);
	*layouts = (struct stall_layouts){};
}

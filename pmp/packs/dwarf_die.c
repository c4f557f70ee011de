// SPDX-License-Identifier: Apache-2.0
#include "packs/dwarf_die.h"

#include <string.h>

#include "base/lengths.h"
#include "packs/dwarf_numbers.h"
#include "unwind/bytes.h"

enum class { CLASS_NONE, CLASS_NUMBER, CLASS_TEXT, CLASS_BLOCK, CLASS_REFERENCE };

struct value {
	enum class class;
	int64_t number;
	const char *text;
	struct stall_dwarf_block block;
	struct stall_dwarf_ref reference;
};

// In the section, which has a NUL behind it.
static void take_string_at(const struct stall_dwarf *dwarf, enum stall_dwarf_section section,
			   uint64_t offset, struct value *ret)
{
	ret->class = CLASS_TEXT;
	if (dwarf && offset < dwarf->size[section])
		ret->text = (const char *)dwarf->data[section] + offset;
}

static void take_indexed_string(const struct stall_dwarf_unit *unit, uint64_t index,
				struct value *ret)
{
	const struct stall_dwarf *dwarf = unit->dwarf;
	uint64_t size = dwarf->size[STALL_DWARF_STR_OFFSETS], at;

	ret->class = CLASS_TEXT;
	if (!stall_mul(index, unit->offset_size, &at) ||
	    !stall_add(at, unit->str_offsets_base, &at) || at >= size)
		return;
	struct stall_bytes bytes =
		stall_bytes_of(dwarf->data[STALL_DWARF_STR_OFFSETS] + at, size - at);
	take_string_at(dwarf, STALL_DWARF_STR, stall_bytes_number(&bytes, unit->offset_size), ret);
}

static void take_inline_string(struct stall_bytes *bytes, struct value *ret)
{
	const char *text = (const char *)bytes->at;
	size_t length = strnlen(text, stall_bytes_left(bytes));

	ret->class = CLASS_TEXT;
	if (stall_bytes_take(bytes, (uint64_t)length + 1))
		ret->text = text;
}

static void take_block(struct stall_bytes *bytes, uint64_t size, struct value *ret)
{
	ret->class = CLASS_BLOCK;
	ret->block = (struct stall_dwarf_block){stall_bytes_take(bytes, size), size};
}

static void take_number(uint64_t number, struct value *ret)
{
	ret->class = CLASS_NUMBER;
	ret->number = (int64_t)number;
}

static void take_reference(const struct stall_dwarf *dwarf, enum stall_dwarf_section section,
			   uint64_t offset, struct value *ret)
{
	ret->class = CLASS_REFERENCE;
	if (dwarf)
		ret->reference.unit = stall_dwarf_unit_at(dwarf, section, offset);
	ret->reference.offset = offset;
}

static void take_near_reference(const struct stall_dwarf_unit *unit, uint64_t offset,
				struct value *ret)
{
	ret->class = CLASS_REFERENCE;
	if (offset >= unit->first - unit->start && offset < unit->end - unit->start)
		ret->reference = (struct stall_dwarf_ref){unit, unit->start + offset};
}

static void take_type(const struct stall_dwarf_unit *unit, uint64_t signature, struct value *ret)
{
	const struct stall_dwarf_unit *type = stall_dwarf_unit_of(unit->dwarf, signature);

	ret->class = CLASS_REFERENCE;
	if (type && type->type_at >= type->first - type->start &&
	    type->type_at < type->end - type->start)
		ret->reference = (struct stall_dwarf_ref){type, type->start + type->type_at};
}

static bool take_fixed(const struct stall_dwarf_unit *unit, uint32_t form,
		       struct stall_bytes *bytes, struct value *ret)
{
	switch (form) {
	case DW_FORM_addr:
		take_number(stall_bytes_number(bytes, unit->address_size), ret);
		return true;
	case DW_FORM_flag:
	case DW_FORM_data1:
	case DW_FORM_addrx1:
		take_number(stall_bytes_number(bytes, 1), ret);
		return true;
	case DW_FORM_data2:
	case DW_FORM_addrx2:
		take_number(stall_bytes_number(bytes, 2), ret);
		return true;
	case DW_FORM_addrx3:
		take_number(stall_bytes_number(bytes, 3), ret);
		return true;
	case DW_FORM_data4:
	case DW_FORM_addrx4:
		take_number(stall_bytes_number(bytes, 4), ret);
		return true;
	case DW_FORM_data8:
		take_number(stall_bytes_number(bytes, 8), ret);
		return true;
	case DW_FORM_sdata:
		take_number(stall_bytes_sleb(bytes), ret);
		return true;
	case DW_FORM_udata:
	case DW_FORM_addrx:
	case DW_FORM_loclistx:
	case DW_FORM_rnglistx:
	case DW_FORM_GNU_addr_index:
		take_number(stall_bytes_uleb(bytes), ret);
		return true;
	case DW_FORM_sec_offset:
		take_number(stall_bytes_number(bytes, unit->offset_size), ret);
		return true;
	case DW_FORM_flag_present:
		take_number(1, ret);
		return true;
	default:
		return false;
	}
}

static bool take_text(const struct stall_dwarf_unit *unit, uint32_t form, struct stall_bytes *bytes,
		      struct value *ret)
{
	const struct stall_dwarf *dwarf = unit->dwarf;

	switch (form) {
	case DW_FORM_string:
		take_inline_string(bytes, ret);
		return true;
	case DW_FORM_strp:
		take_string_at(dwarf, STALL_DWARF_STR, stall_bytes_number(bytes, unit->offset_size),
			       ret);
		return true;
	case DW_FORM_line_strp:
		take_string_at(dwarf, STALL_DWARF_LINE_STR,
			       stall_bytes_number(bytes, unit->offset_size), ret);
		return true;
	case DW_FORM_strp_sup:
	case DW_FORM_GNU_strp_alt:
		take_string_at(dwarf->alt, STALL_DWARF_STR,
			       stall_bytes_number(bytes, unit->offset_size), ret);
		return true;
	case DW_FORM_strx:
	case DW_FORM_GNU_str_index:
		take_indexed_string(unit, stall_bytes_uleb(bytes), ret);
		return true;
	case DW_FORM_strx1:
	case DW_FORM_strx2:
	case DW_FORM_strx3:
	case DW_FORM_strx4:
		take_indexed_string(unit, stall_bytes_number(bytes, form - DW_FORM_strx1 + 1), ret);
		return true;
	default:
		return false;
	}
}

static bool take_other(const struct stall_dwarf_unit *unit, uint32_t form,
		       struct stall_bytes *bytes, struct value *ret)
{
	switch (form) {
	case DW_FORM_block1:
		take_block(bytes, stall_bytes_number(bytes, 1), ret);
		return true;
	case DW_FORM_block2:
		take_block(bytes, stall_bytes_number(bytes, 2), ret);
		return true;
	case DW_FORM_block4:
		take_block(bytes, stall_bytes_number(bytes, 4), ret);
		return true;
	case DW_FORM_block:
	case DW_FORM_exprloc:
		take_block(bytes, stall_bytes_uleb(bytes), ret);
		return true;
	case DW_FORM_data16:
		take_block(bytes, 16, ret);
		return true;
	case DW_FORM_ref1:
		take_near_reference(unit, stall_bytes_number(bytes, 1), ret);
		return true;
	case DW_FORM_ref2:
		take_near_reference(unit, stall_bytes_number(bytes, 2), ret);
		return true;
	case DW_FORM_ref4:
		take_near_reference(unit, stall_bytes_number(bytes, 4), ret);
		return true;
	case DW_FORM_ref8:
		take_near_reference(unit, stall_bytes_number(bytes, 8), ret);
		return true;
	case DW_FORM_ref_udata:
		take_near_reference(unit, stall_bytes_uleb(bytes), ret);
		return true;
	case DW_FORM_ref_addr: // of DWARF 2 as long as an address
		take_reference(unit->dwarf, STALL_DWARF_INFO,
			       stall_bytes_number(bytes, unit->version == 2 ? unit->address_size
									    : unit->offset_size),
			       ret);
		return true;
	case DW_FORM_ref_sup4:
		take_reference(unit->dwarf->alt, STALL_DWARF_INFO, stall_bytes_number(bytes, 4),
			       ret);
		return true;
	case DW_FORM_ref_sup8:
		take_reference(unit->dwarf->alt, STALL_DWARF_INFO, stall_bytes_number(bytes, 8),
			       ret);
		return true;
	case DW_FORM_GNU_ref_alt:
		take_reference(unit->dwarf->alt, STALL_DWARF_INFO,
			       stall_bytes_number(bytes, unit->offset_size), ret);
		return true;
	case DW_FORM_ref_sig8:
		take_type(unit, stall_bytes_number(bytes, 8), ret);
		return true;
	default:
		return false;
	}
}

// False: an unknown form, behind which nothing can be read.
static bool take_value(const struct stall_dwarf_unit *unit,
		       const struct stall_dwarf_attribute *attribute, struct stall_bytes *bytes,
		       struct value *ret)
{
	uint32_t form = attribute->form;

	*ret = (struct value){};
	if (form == DW_FORM_indirect)
		form = (uint32_t)stall_bytes_uleb(bytes);
	else if (form == DW_FORM_implicit_const)
		take_number((uint64_t)attribute->constant, ret);
	return (form == DW_FORM_implicit_const && form == attribute->form) ||
	       take_fixed(unit, form, bytes, ret) || take_text(unit, form, bytes, ret) ||
	       take_other(unit, form, bytes, ret);
}

static void set_location(struct stall_dwarf_die *die, const struct value *value)
{
	die->has_location = true;
	die->location = value->class == CLASS_NUMBER ? value->number : -1;
	if (value->class == CLASS_BLOCK)
		die->location_block = value->block;
}

static void apply(struct stall_dwarf_die *die, const struct stall_dwarf_unit *unit, uint32_t name,
		  const struct value *value)
{
	switch (name) {
	case DW_AT_sibling:
		if (value->reference.unit == unit)
			die->sibling = value->reference.offset;
		break;
	case DW_AT_name:
		die->name = value->text;
		break;
	case DW_AT_byte_size:
		die->has_byte_size = value->class == CLASS_NUMBER;
		die->byte_size = (uint64_t)value->number;
		break;
	case DW_AT_bit_size:
	case DW_AT_data_bit_offset:
		die->is_bit_field = true;
		break;
	case DW_AT_data_member_location:
		set_location(die, value);
		break;
	case DW_AT_declaration:
		die->is_declaration |= value->number != 0;
		break;
	case DW_AT_external:
		die->is_external = value->number;
		break;
	case DW_AT_specification:
		die->is_of_scope = true;
		break;
	case DW_AT_type:
		die->type = value->reference;
		break;
	case DW_AT_virtuality:
		die->is_virtual = value->number;
		break;
	case DW_AT_signature:
		// Its definition is in a type unit.
		die->signature = value->reference;
		die->is_declaration = true;
		break;
	case DW_AT_dwo_name:
	case DW_AT_GNU_dwo_name:
		die->is_split = true;
		break;
	}
}

bool stall_dwarf_die_read(const struct stall_dwarf_unit *unit, uint64_t offset,
			  struct stall_dwarf_die *ret)
{
	const struct stall_dwarf_abbrevs *abbrevs = stall_dwarf_abbrevs_of(unit);
	const uint8_t *section = unit->dwarf->data[unit->section];
	struct value value;

	*ret = (struct stall_dwarf_die){};
	if (!abbrevs || offset < unit->first || offset >= unit->end)
		return false;
	struct stall_bytes bytes = stall_bytes_of(section + offset, unit->end - offset);
	uint64_t code = stall_bytes_uleb(&bytes);
	if (code >= abbrevs->count || (code && !abbrevs->list[code].tag))
		return false;
	if (code) {
		const struct stall_dwarf_abbrev *abbrev = &abbrevs->list[code];

		ret->tag = abbrev->tag;
		ret->has_children = abbrev->has_children;
		for (uint32_t i = 0; i < abbrev->count; i++) {
			const struct stall_dwarf_attribute *attribute =
				&abbrevs->attributes[abbrev->first + i];

			if (!take_value(unit, attribute, &bytes, &value) || bytes.torn)
				return false;
			apply(ret, unit, attribute->name, &value);
		}
	}
	ret->next = (uint64_t)(bytes.at - section);
	return !bytes.torn;
}

// The base is an attribute of the unit, and some of its strings may come before it.
bool stall_dwarf_unit_prepare(struct stall_dwarf_unit *unit, struct stall_dwarf_die *ret)
{
	const struct stall_dwarf_abbrevs *abbrevs = stall_dwarf_abbrevs_of(unit);
	struct stall_bytes bytes = stall_bytes_of(unit->dwarf->data[unit->section] + unit->first,
						  unit->end - unit->first);
	uint64_t code = stall_bytes_uleb(&bytes);
	struct value value;

	if (!abbrevs || bytes.torn || code >= abbrevs->count)
		return false;
	const struct stall_dwarf_abbrev *abbrev = &abbrevs->list[code];
	for (uint32_t i = 0; i < abbrev->count; i++) {
		const struct stall_dwarf_attribute *attribute =
			&abbrevs->attributes[abbrev->first + i];

		if (!take_value(unit, attribute, &bytes, &value) || bytes.torn)
			return false;
		if (attribute->name == DW_AT_str_offsets_base)
			unit->str_offsets_base = (uint64_t)value.number;
	}
	return stall_dwarf_die_read(unit, unit->first, ret);
}

bool stall_dwarf_die_skip(const struct stall_dwarf_unit *unit, const struct stall_dwarf_die *die,
			  uint64_t *steps, uint64_t *ret_offset)
{
	struct stall_dwarf_die child;
	uint64_t offset = die->next;

	if (!die->has_children || die->sibling > die->next) {
		*ret_offset = die->has_children ? die->sibling : die->next;
		return true;
	}
	for (size_t depth = 1; depth;) {
		if (!*steps || !stall_dwarf_die_read(unit, offset, &child))
			return false;
		--*steps;
		offset = child.next;
		if (child.has_children && child.sibling > child.next)
			offset = child.sibling;
		else if (child.has_children)
			depth++;
		else if (!child.tag)
			depth--;
	}
	*ret_offset = offset;
	return true;
}

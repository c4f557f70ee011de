// SPDX-License-Identifier: Apache-2.0
#include "packs/dwarf_sections.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "packs/dwarf_numbers.h"
#include "unwind/bytes.h"
#include "unwind/elf_section.h"

#define MAX_SECTION (UINT64_C(3) << 29) // MariaDB 11.4 with GCC 4.8 has 217 MB
#define MAX_UNITS 1000000
#define MAX_CODES 65536U
#define MAX_ATTRIBUTES (1U << 20) // of all abbreviations of a unit

static const char *const section_names[STALL_DWARF_SECTIONS] = {
	[STALL_DWARF_INFO] = ".debug_info",
	[STALL_DWARF_TYPES] = ".debug_types",
	[STALL_DWARF_ABBREV] = ".debug_abbrev",
	[STALL_DWARF_STR] = ".debug_str",
	[STALL_DWARF_LINE_STR] = ".debug_line_str",
	[STALL_DWARF_STR_OFFSETS] = ".debug_str_offsets",
};

static struct stall_error *load_sections(struct stall_dwarf *dwarf, const struct stall_elf *elf)
{
	struct stall_elf_place place;

	for (int i = 0; i < STALL_DWARF_SECTIONS; i++) {
		if (!stall_elf_place_find(elf, section_names[i], MAX_SECTION, &place))
			continue;
		struct stall_error *err =
			stall_elf_place_load(elf, &place, MAX_SECTION, &dwarf->data[i]);
		if (err)
			return err;
		dwarf->size[i] = place.size;
	}
	return NULL;
}

static bool read_header(struct stall_bytes *bytes, struct stall_dwarf_unit *unit)
{
	unit->version = (uint8_t)stall_bytes_number(bytes, 2);
	if (unit->version < 2 || unit->version > 5)
		return false;
	if (unit->version >= 5) {
		unit->type = (uint8_t)stall_bytes_number(bytes, 1);
		unit->address_size = (uint8_t)stall_bytes_number(bytes, 1);
		unit->abbrev_offset = stall_bytes_number(bytes, unit->offset_size);
		if (unit->type == DW_UT_skeleton || unit->type == DW_UT_split_compile)
			stall_bytes_take(bytes, 8);
	} else {
		unit->abbrev_offset = stall_bytes_number(bytes, unit->offset_size);
		unit->address_size = (uint8_t)stall_bytes_number(bytes, 1);
		unit->type = unit->section == STALL_DWARF_TYPES ? DW_UT_type : DW_UT_compile;
	}
	if (unit->type == DW_UT_type || unit->type == DW_UT_split_type) {
		unit->signature = stall_bytes_number(bytes, 8);
		unit->type_at = stall_bytes_number(bytes, unit->offset_size);
	}
	return !bytes->torn && (unit->address_size == 4 || unit->address_size == 8);
}

static bool add_unit(struct stall_dwarf *dwarf, const struct stall_dwarf_unit *unit)
{
	if (!stall_array_reserve(&dwarf->units, dwarf->unit_count, 1, &dwarf->unit_capacity))
		return false;
	dwarf->units[dwarf->unit_count++] = *unit;
	return true;
}

// Units that are damaged or of an unknown version are left out, if the next one can be found.
static struct stall_error *read_units(struct stall_dwarf *dwarf, enum stall_dwarf_section section)
{
	const uint8_t *data = dwarf->data[section];
	struct stall_bytes bytes = stall_bytes_of(data, dwarf->size[section]);

	while (data && stall_bytes_left(&bytes) && dwarf->unit_count < MAX_UNITS) {
		struct stall_dwarf_unit unit = {
			.dwarf = dwarf,
			.section = section,
			.start = (uint64_t)(bytes.at - data),
			.offset_size = 4,
		};
		uint64_t length = stall_bytes_number(&bytes, 4);

		if (length == UINT32_MAX) {
			unit.offset_size = 8;
			length = stall_bytes_number(&bytes, 8);
		}
		const uint8_t *at = stall_bytes_take(&bytes, length);
		if (bytes.torn) {
			dwarf->is_torn = true;
			return NULL;
		}
		struct stall_bytes inside = stall_bytes_of(at, length);
		if (!read_header(&inside, &unit)) {
			dwarf->is_torn |= length != 0;
			continue;
		}
		unit.first = (uint64_t)(inside.at - data);
		unit.end = (uint64_t)(bytes.at - data);
		// What a compiler leaves out means the place behind a header of its table.
		unit.str_offsets_base = unit.version >= 5 ? 2 * unit.offset_size : 0;
		if (!add_unit(dwarf, &unit))
			return &stall_enomem;
	}
	return NULL;
}

// For the order of qsort(3).
static int compare_signatures(const void *a, const void *b, void *arg)
{
	const struct stall_dwarf *dwarf = arg;
	uint64_t x = dwarf->units[*(const size_t *)a].signature;
	uint64_t y = dwarf->units[*(const size_t *)b].signature;

	return (x > y) - (x < y);
}

static struct stall_error *index_types(struct stall_dwarf *dwarf)
{
	dwarf->by_signature = calloc(dwarf->unit_count + 1, sizeof(*dwarf->by_signature));
	if (!dwarf->by_signature)
		return &stall_enomem;
	for (size_t i = 0; i < dwarf->unit_count; i++) {
		if (dwarf->units[i].type == DW_UT_type)
			dwarf->by_signature[dwarf->type_unit_count++] = i;
	}
	qsort_r(dwarf->by_signature, dwarf->type_unit_count, sizeof(*dwarf->by_signature),
		compare_signatures, dwarf);
	return NULL;
}

struct stall_error *stall_dwarf_open(const struct stall_elf *elf, struct stall_dwarf **ret)
{
	_cleanup_(stall_dwarf_destroyp) struct stall_dwarf *dwarf = calloc(1, sizeof(*dwarf));

	*ret = NULL;
	if (!dwarf)
		return &stall_enomem;
	struct stall_error *err = load_sections(dwarf, elf);
	if (err)
		return err;
	if (!dwarf->data[STALL_DWARF_INFO] || !dwarf->data[STALL_DWARF_ABBREV])
		return NULL;
	err = read_units(dwarf, STALL_DWARF_INFO);
	dwarf->info_unit_count = dwarf->unit_count;
	if (!err)
		err = read_units(dwarf, STALL_DWARF_TYPES);
	if (!err)
		err = index_types(dwarf);
	if (err)
		return err;
	*ret = no_cleanup_ptr(dwarf);
	return NULL;
}

static void abbrevs_destroy(struct stall_dwarf_abbrevs *abbrevs)
{
	if (!abbrevs)
		return;
	free(abbrevs->list);
	free(abbrevs->attributes);
	free(abbrevs);
}

static void abbrevs_destroyp(struct stall_dwarf_abbrevs **abbrevs)
{
	abbrevs_destroy(*abbrevs);
}

void stall_dwarf_destroy(struct stall_dwarf *dwarf)
{
	if (!dwarf)
		return;
	for (int i = 0; i < STALL_DWARF_SECTIONS; i++)
		free(dwarf->data[i]);
	for (size_t i = 0; i < STALL_DWARF_KEPT_ABBREVS; i++)
		abbrevs_destroy(dwarf->kept[i]);
	free(dwarf->units);
	free(dwarf->by_signature);
	free(dwarf);
}

const struct stall_dwarf_unit *stall_dwarf_unit_at(const struct stall_dwarf *dwarf,
						   enum stall_dwarf_section section,
						   uint64_t offset)
{
	bool is_info = section == STALL_DWARF_INFO;
	size_t low = is_info ? 0 : dwarf->info_unit_count;
	size_t start = low, high = is_info ? dwarf->info_unit_count : dwarf->unit_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (dwarf->units[middle].start <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == start)
		return NULL;
	const struct stall_dwarf_unit *unit = &dwarf->units[low - 1];
	return offset >= unit->first && offset < unit->end ? unit : NULL;
}

const struct stall_dwarf_unit *stall_dwarf_unit_of(const struct stall_dwarf *dwarf,
						   uint64_t signature)
{
	size_t low = 0, high = dwarf->type_unit_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct stall_dwarf_unit *unit = &dwarf->units[dwarf->by_signature[middle]];

		if (unit->signature == signature)
			return unit;
		if (unit->signature < signature)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/* Abbreviations. */

static bool read_attributes(struct stall_bytes *bytes, struct stall_dwarf_abbrevs *abbrevs)
{
	for (;;) {
		struct stall_dwarf_attribute attribute = {};

		attribute.name = (uint32_t)stall_bytes_uleb(bytes);
		attribute.form = (uint32_t)stall_bytes_uleb(bytes);
		if (attribute.form == DW_FORM_implicit_const)
			attribute.constant = (int64_t)stall_bytes_sleb(bytes);
		if (bytes->torn || abbrevs->attribute_count == MAX_ATTRIBUTES)
			return false;
		if (!attribute.name && !attribute.form)
			return true;
		if (!stall_array_reserve(&abbrevs->attributes, abbrevs->attribute_count, 1,
					 &abbrevs->attribute_capacity))
			return false;
		abbrevs->attributes[abbrevs->attribute_count++] = attribute;
	}
}

static bool read_abbrev(struct stall_bytes *bytes, struct stall_dwarf_abbrevs *abbrevs,
			uint64_t code)
{
	uint32_t before = abbrevs->capacity;

	if (code > MAX_CODES || !stall_array_reserve(&abbrevs->list, code, 1, &abbrevs->capacity))
		return false;
	memset(abbrevs->list + before, 0, (abbrevs->capacity - before) * sizeof(*abbrevs->list));
	struct stall_dwarf_abbrev abbrev = {.first = abbrevs->attribute_count};
	abbrev.tag = (uint32_t)stall_bytes_uleb(bytes);
	abbrev.has_children = stall_bytes_number(bytes, 1);
	if (!read_attributes(bytes, abbrevs))
		return false;
	abbrev.count = abbrevs->attribute_count - abbrev.first;
	abbrevs->list[code] = abbrev;
	if (abbrevs->count <= code)
		abbrevs->count = (uint32_t)code + 1;
	return true;
}

static struct stall_dwarf_abbrevs *read_abbrevs(const struct stall_dwarf *dwarf, uint64_t offset)
{
	_cleanup_(abbrevs_destroyp) struct stall_dwarf_abbrevs *abbrevs =
		calloc(1, sizeof(*abbrevs));

	if (!abbrevs || offset >= dwarf->size[STALL_DWARF_ABBREV])
		return NULL;
	struct stall_bytes bytes = stall_bytes_of(dwarf->data[STALL_DWARF_ABBREV] + offset,
						  dwarf->size[STALL_DWARF_ABBREV] - offset);
	abbrevs->offset = offset;
	for (uint64_t code; (code = stall_bytes_uleb(&bytes)) && !bytes.torn;) {
		if (!read_abbrev(&bytes, abbrevs, code))
			return NULL;
	}
	return bytes.torn ? NULL : no_cleanup_ptr(abbrevs);
}

const struct stall_dwarf_abbrevs *stall_dwarf_abbrevs_of(const struct stall_dwarf_unit *unit)
{
	struct stall_dwarf *dwarf = unit->dwarf;
	struct stall_dwarf_abbrevs **kept =
		&dwarf->kept[unit->abbrev_offset * 0x9e3779b97f4a7c15ULL >> 57];

	_Static_assert(STALL_DWARF_KEPT_ABBREVS == 1 << 7, "what the shift leaves");
	if (*kept && (*kept)->offset == unit->abbrev_offset)
		return *kept;
	abbrevs_destroy(*kept);
	*kept = read_abbrevs(dwarf, unit->abbrev_offset);
	return *kept;
}

// SPDX-License-Identifier: Apache-2.0
#include "growth/resident.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "proc/read_child.h"

#define CHUNK_PAGES 16384
#define PRESENT (UINT64_C(1) << 63)
#define SWAPPED (UINT64_C(1) << 62)
#define OF_FILE (UINT64_C(1) << 61) // or of shared memory
#define EXCLUSIVE (UINT64_C(1) << 56)

bool stall_resident_is_own(uint64_t entry)
{
	if (entry & OF_FILE)
		return false;
	// The zero page, which reads of untouched memory get, is mapped by many.
	return entry & SWAPPED || (entry & PRESENT && entry & EXCLUSIVE);
}

void stall_resident_deinit(struct stall_resident *resident)
{
	for (size_t i = 0; i < resident->count; i++)
		free(resident->ranges[i].bits);
	free(resident->ranges);
	*resident = (struct stall_resident){};
}

static struct stall_error *read_range(const struct stall_target *target,
				      struct stall_resident *resident,
				      struct stall_resident_range *range, uint64_t *entries)
{
	uint64_t pages = (range->end - range->start) / STALL_PAGE,
		 first = range->start / STALL_PAGE;

	range->bits = calloc((pages + 63) / 64, sizeof(*range->bits));
	if (!range->bits)
		return &stall_enomem;
	for (uint64_t at = 0; at < pages;) {
		uint64_t count = pages - at < CHUNK_PAGES ? pages - at : CHUNK_PAGES;
		size_t got;
		struct stall_error *err =
			stall_read_child_at(target, (first + at) * sizeof(*entries), entries,
					    count * sizeof(*entries), &got);

		if (err)
			return err;
		if (got < sizeof(*entries)) // the mapping has gone
			return NULL;
		count = got / sizeof(*entries);
		for (uint64_t i = 0; i < count; i++) {
			if (!stall_resident_is_own(entries[i]))
				continue;
			range->bits[(at + i) / 64] |= UINT64_C(1) << ((at + i) % 64);
			resident->pages++;
		}
		at += count;
	}
	return NULL;
}

struct stall_error *stall_resident_read(const struct stall_target *target,
					const struct stall_growth_mappings *mappings,
					struct stall_resident *ret)
{
	_cleanup_free_ uint64_t *entries = calloc(CHUNK_PAGES, sizeof(*entries));
	uint64_t room = STALL_RESIDENT_MAX_PAGES;
	struct stall_error *err = stall_read_child_open(target, "pagemap");

	if (err)
		return err;
	ret->ranges = calloc(mappings->count + 1, sizeof(*ret->ranges));
	if (!entries || !ret->ranges)
		return &stall_enomem;
	for (size_t i = 0; !err && i < mappings->count; i++) {
		const struct stall_growth_mapping *mapping = &mappings->list[i];
		uint64_t pages = (mapping->end - mapping->start) / STALL_PAGE;

		if (!mapping->anonymous && !mapping->swap)
			continue;
		if (pages > room) {
			ret->cut = true;
			continue;
		}
		room -= pages;
		struct stall_resident_range *range = &ret->ranges[ret->count++];
		*range =
			(struct stall_resident_range){.start = mapping->start, .end = mapping->end};
		err = read_range(target, ret, range, entries);
	}
	return err;
}

bool stall_resident_has(const struct stall_resident *resident, uint64_t address)
{
	size_t low = 0, high = resident->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (resident->ranges[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == resident->count || resident->ranges[low].start > address)
		return false;
	uint64_t page = (address - resident->ranges[low].start) / STALL_PAGE;
	return resident->ranges[low].bits[page / 64] >> (page % 64) & 1;
}

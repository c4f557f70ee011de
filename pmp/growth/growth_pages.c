// SPDX-License-Identifier: Apache-2.0
#include "growth/growth_pages.h"

#include <stdlib.h>

#define FIRST_CAPACITY 4096
#define BLOCK_BYTES ((uint64_t)STALL_HUGE_PAGES * 4096)

void stall_growth_pages_deinit(struct stall_growth_pages *pages)
{
	free(pages->slots);
	free(pages->blocks);
	*pages = (struct stall_growth_pages){};
}

static struct stall_growth_page *place(struct stall_growth_page *slots, size_t capacity,
				       uint64_t address)
{
	size_t at = (address >> 12) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (capacity - 1);

	while (slots[at].address && slots[at].address != address)
		at = (at + 1) & (capacity - 1);
	return &slots[at];
}

static struct stall_error *grow(struct stall_growth_pages *pages)
{
	size_t capacity = pages->capacity ? pages->capacity * 2 : FIRST_CAPACITY;
	struct stall_growth_page *slots = calloc(capacity, sizeof(*slots));

	if (!slots)
		return &stall_enomem;
	for (size_t i = 0; i < pages->capacity; i++)
		if (pages->slots[i].address)
			*place(slots, capacity, pages->slots[i].address) = pages->slots[i];
	free(pages->slots);
	pages->slots = slots;
	pages->capacity = capacity;
	return NULL;
}

struct stall_error *stall_growth_pages_set(struct stall_growth_pages *pages, uint64_t address,
					   uint32_t toucher, uint32_t weight)
{
	if (!address)
		return NULL;
	if (pages->count + 1 > pages->capacity / 4 * 3) {
		struct stall_error *err = grow(pages);
		if (err)
			return err;
	}
	struct stall_growth_page *page = place(pages->slots, pages->capacity, address);
	if (!page->address) {
		if (pages->count >= STALL_GROWTH_MAX_PAGES) {
			pages->no_room += weight;
			return NULL;
		}
		pages->count++;
	}
	*page = (struct stall_growth_page){address, toucher, weight};
	pages->is_sampled |= weight > 1;
	return NULL;
}

struct stall_growth_page *stall_growth_pages_find(const struct stall_growth_pages *pages,
						  uint64_t address)
{
	if (!pages->capacity)
		return NULL;
	struct stall_growth_page *page = place(pages->slots, pages->capacity, address);
	return page->address ? page : NULL;
}

struct stall_error *stall_growth_pages_index_blocks(struct stall_growth_pages *pages)
{
	free(pages->blocks);
	pages->block_capacity = pages->capacity;
	pages->blocks = pages->capacity ? calloc(pages->capacity, sizeof(*pages->blocks)) : NULL;
	if (pages->capacity && !pages->blocks)
		return &stall_enomem;
	for (size_t i = 0; i < pages->capacity; i++) {
		const struct stall_growth_page *page = &pages->slots[i];
		uint64_t block = page->address / BLOCK_BYTES * BLOCK_BYTES;

		if (!page->address || !block)
			continue;
		struct stall_growth_page *at = place(pages->blocks, pages->block_capacity, block);
		*at = *page;
		at->address = block;
	}
	return NULL;
}

const struct stall_growth_page *stall_growth_pages_find_block(
	const struct stall_growth_pages *pages, uint64_t address)
{
	if (!pages->block_capacity)
		return NULL;
	const struct stall_growth_page *page =
		place(pages->blocks, pages->block_capacity, address / BLOCK_BYTES * BLOCK_BYTES);
	return page->address ? page : NULL;
}

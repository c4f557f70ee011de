// SPDX-License-Identifier: Apache-2.0
#include "unwind/symbol_table.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/lengths.h"

bool stall_symbol_table_add(struct stall_symbol_table *table,
			    const struct stall_symbol_entry *entry)
{
	if (!stall_array_reserve(&table->entries, table->count, 1, &table->capacity))
		return false;
	table->entries[table->count++] = *entry;
	return true;
}

void stall_symbol_table_deinit(struct stall_symbol_table *table)
{
	free(table->entries);
	free(table->reach);
}

// Least significant digit first, 11 bits at a time, by the upper half of each key.
static void radix_sort(uint64_t *keys, uint64_t *spare, size_t count)
{
	for (unsigned int shift = 32; shift < 64; shift += 11) {
		uint32_t start[2048] = {};
		uint32_t sum = 0;

		for (size_t i = 0; i < count; i++)
			start[(keys[i] >> shift) & 2047]++;
		for (size_t i = 0; i < 2048; i++) {
			uint32_t n = start[i];

			start[i] = sum;
			sum += n;
		}
		for (size_t i = 0; i < count; i++)
			spare[start[(keys[i] >> shift) & 2047]++] = keys[i];
		uint64_t *swap = keys;
		keys = spare;
		spare = swap;
	}
	// Three passes: the result lies in what was `spare` at first.
}

static int compare_entries(const void *a, const void *b)
{
	const struct stall_symbol_entry *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

static bool spans_32_bits(const struct stall_symbol_table *table, uint64_t *ret_low)
{
	uint64_t low = UINT64_MAX, high = 0;

	for (size_t i = 0; i < table->count; i++) {
		low = table->entries[i].address < low ? table->entries[i].address : low;
		high = table->entries[i].address > high ? table->entries[i].address : high;
	}
	*ret_low = low;
	return high - low <= UINT32_MAX;
}

static struct stall_error *sort_by_radix(struct stall_symbol_table *table, uint64_t low)
{
	_cleanup_free_ uint64_t *keys = malloc(2 * table->count * sizeof(*keys));
	_cleanup_free_ struct stall_symbol_entry *sorted = malloc(table->count * sizeof(*sorted));

	if (!keys || !sorted)
		return &stall_enomem;
	for (size_t i = 0; i < table->count; i++)
		keys[i] = (table->entries[i].address - low) << 32 | i;
	radix_sort(keys, keys + table->count, table->count);
	for (size_t i = 0; i < table->count; i++)
		sorted[i] = table->entries[(uint32_t)keys[table->count + i]];
	free(table->entries);
	table->entries = no_cleanup_ptr(sorted);
	table->capacity = table->count;
	return NULL;
}

static uint64_t entry_end(const struct stall_symbol_entry *entry)
{
	uint64_t end;

	return stall_add(entry->address, entry->size, &end) ? end : UINT64_MAX;
}

struct stall_error *stall_symbol_table_finish(struct stall_symbol_table *table)
{
	uint64_t low;

	if (!table->count)
		return NULL;
	if (spans_32_bits(table, &low)) {
		struct stall_error *err = sort_by_radix(table, low);

		if (err)
			return err;
	} else {
		qsort(table->entries, table->count, sizeof(*table->entries), compare_entries);
	}
	table->reach = malloc(table->count * sizeof(*table->reach));
	if (!table->reach)
		return &stall_enomem;
	for (size_t i = 0; i < table->count; i++) {
		uint64_t end = entry_end(&table->entries[i]);

		table->reach[i] = i && table->reach[i - 1] > end ? table->reach[i - 1] : end;
	}
	return NULL;
}

size_t stall_symbol_table_upper_bound(const struct stall_symbol_table *table, uint64_t address)
{
	size_t low = 0, high = table->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (table->entries[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

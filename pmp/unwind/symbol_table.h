// SPDX-License-Identifier: Apache-2.0
// Symbols of one kind, sorted by address.
#ifndef STALL_SYMBOL_TABLE_H
#define STALL_SYMBOL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct stall_symbol_entry {
	uint64_t address, size;
	uint32_t name; // in the source's string table
	uint16_t section;
	uint8_t info; // st_info
	uint8_t source;
};

struct stall_symbol_table {
	struct stall_symbol_entry *entries; // by address
	size_t count, capacity;
	uint64_t *reach; // the highest end of entries[0..i]
};

bool stall_symbol_table_add(struct stall_symbol_table *table,
			    const struct stall_symbol_entry *entry);
// Sorts; nothing can be added afterwards.
struct stall_error *stall_symbol_table_finish(struct stall_symbol_table *table);
void stall_symbol_table_deinit(struct stall_symbol_table *table);

// The index after the last entry that starts at or before the address.
size_t stall_symbol_table_upper_bound(const struct stall_symbol_table *table, uint64_t address);

#endif

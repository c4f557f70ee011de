// SPDX-License-Identifier: Apache-2.0
// The symbols of one ELF file (and of its separate debug file) in sorted tables.
#ifndef STALL_SYMBOLS_H
#define STALL_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/elf_file.h"
#include "unwind/pack_file.h"

#define STALL_MAX_LINKAGE 8192 // bytes of a name in a string table

struct stall_symbols;

struct stall_symbol {
	char *linkage; // as in the table, without "@version"; free it
	uint64_t address, size;
};

// Reads the tables: .symtab of the file (NULL: only of the pack) or of `debug` (may be NULL), else
// those of `pack` (may be NULL), else .dynsym and .gnu_debugdata. All files must live as long as the result. Torn tables
// give an empty result.
struct stall_error *stall_symbols_create(const struct stall_elf *elf, const struct stall_elf *debug,
					 struct stall_pack *pack, struct stall_symbols **ret);
void stall_symbols_destroy(struct stall_symbols *symbols);

// ".symtab", ".dynsym", ".gnu_debugdata", "separate", "pack", "none": the best that was found.
const char *stall_symbols_source(const struct stall_symbols *symbols);
size_t stall_symbols_count(const struct stall_symbols *symbols);

// The function, or the object, that covers the address. False where nothing does: a symbol only
// covers its st_size.
bool stall_symbols_find_function(struct stall_symbols *symbols, uint64_t address,
				 struct stall_symbol *ret);
bool stall_symbols_find_object(struct stall_symbols *symbols, uint64_t address,
			       struct stall_symbol *ret);

// Calls `visit` for each function in the tables, including clones (name.part.0) and aliases, in no
// order. Names are as in the table, shorter than STALL_MAX_LINKAGE.
typedef void stall_symbols_visit(void *arg, const char *name, uint64_t address);
struct stall_error *stall_symbols_each_function(const struct stall_symbols *symbols,
						stall_symbols_visit *visit, void *arg);

// One name of a table: an address can have several.
struct stall_symbol_info {
	const char *linkage; // as in the table
	uint64_t address;
	uint64_t size; // of a function without one: what find_function says that it covers
	uint8_t info;  // st_info
	bool is_object;
};
// Calls `visit` for the functions, then for the objects, each by ascending address. Functions that
// cover nothing are left out.
typedef struct stall_error *stall_symbols_visit_info(void *arg,
						     const struct stall_symbol_info *info);
struct stall_error *stall_symbols_each(struct stall_symbols *symbols,
				       stall_symbols_visit_info *visit, void *arg);

// An object by its name: of C, or of C++ with or without namespaces ("a::b").
bool stall_symbols_find_name(struct stall_symbols *symbols, const char *name,
			     struct stall_symbol *ret);

#endif

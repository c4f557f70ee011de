// SPDX-License-Identifier: Apache-2.0
// One ELF file with its symbols and unwind rows, and a cache of the results for addresses.
#ifndef STALL_BINARY_H
#define STALL_BINARY_H

#include "unwind/cfi.h"
#include "unwind/debug_file.h"
#include "unwind/elf_file.h"
#include "unwind/pack_dirs.h"
#include "unwind/symbols.h"

// A function's names. One per function of the file, shared by its addresses.
struct stall_name {
	char *symbol;  // demangled
	char *linkage; // NULL: the same
	uint64_t address;
	struct stall_name *next;
	uint64_t stamp; // for the caller's own numbering
	uint32_t symbol_at, linkage_at;
};

// The result for an address of the file.
struct stall_site {
	uint64_t key; // address * 2 + exact; 0: free slot
	const struct stall_row *row;
	struct stall_name *name; // NULL: nothing covers it
	bool bad_cfi;
};

// An object that was searched for by name, found or not.
struct stall_known_object {
	char *name;
	bool found;
	uint64_t address, size;
};
#define STALL_KNOWN_OBJECTS 64

struct stall_binary {
	struct stall_elf *elf; // NULL: there is a pack alone
	struct stall_elf *debug;
	struct stall_pack *pack;
	char *debug_path; // of the file or the pack that the names come from; NULL: the file itself
	char *pack_error; // why a pack or a debug file that is there is not used, or NULL
	struct stall_symbols *symbols;
	struct stall_cfi *cfi;
	struct stall_site *sites;
	size_t site_count, site_capacity; // capacity is a power of two
	struct stall_name **names;	  // by address of the function
	size_t name_count, name_capacity;
	struct stall_known_object objects[STALL_KNOWN_OBJECTS];
	size_t object_count;
};

// Takes `elf` over, on failure too. Reads the symbol tables. Where the file and its debug file have
// none of static functions, a pack is searched for. `dirs` and `packs` may be NULL.
struct stall_error *stall_binary_create(struct stall_elf *elf, const struct stall_search_dirs *dirs,
					const struct stall_search_dirs *packs, const char *path,
					struct stall_binary **ret);
// Names alone, without the file. Takes the pack and the path over, on failure too.
struct stall_error *stall_binary_create_packed(struct stall_pack *pack, char *path,
					       struct stall_binary **ret);
void stall_binary_destroy(struct stall_binary *binary);

// `exact`: the address is that of an instruction to be executed next (the innermost frame, or one
// that a signal interrupted). Otherwise it is a return address, and the call before it counts.
// NULL: out of memory.
const struct stall_site *stall_binary_site(struct stall_binary *binary, uint64_t address,
					   bool exact);

// As stall_symbols_find_name, with a cache: each capture searches for the same few names.
bool stall_binary_find_object(struct stall_binary *binary, const char *name, uint64_t *ret_address,
			      uint64_t *ret_size);

#endif

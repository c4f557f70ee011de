// SPDX-License-Identifier: Apache-2.0
#include "inproc/hooks_symbols.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Of the loader. Weak: its address comes from our own relocations, and is NULL before the loader
// has applied them (a resolver of an IFUNC that calls us).
extern struct r_debug _r_debug __attribute__((weak));
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

#define MAX_OBJECTS 4096

// The tables of one object in which a name is looked up.
struct object {
	ElfW(Addr) base;
	const ElfW(Sym) * symbols;
	const char *strings;
	const ElfW(Versym) * versions; // one per symbol; NULL: symbols have none
	const ElfW(Verdef) * defined;
	const uint32_t *gnu_hash;
	const uint32_t *hash;
	const char *name; // DT_SONAME, NULL: none
};

static bool is_equal(const char *left, const char *right)
{
	while (*left && *left == *right) {
		left++;
		right++;
	}
	return *left == *right;
}

// The loader has relocated these pointers, but not where the section is read-only (the vdso's).
static const void *pointer_of(const struct link_map *map, const ElfW(Dyn) * entry)
{
	ElfW(Addr) address = entry->d_un.d_ptr;

	return (const void *)(address < map->l_addr ? address + map->l_addr : address);
}

static bool read_object(const struct link_map *map, struct object *ret)
{
	struct object object = {.base = map->l_addr};
	ElfW(Xword) soname = 0;
	bool has_soname = false;

	for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
		switch (entry->d_tag) {
		case DT_SYMTAB:
			object.symbols = pointer_of(map, entry);
			break;
		case DT_STRTAB:
			object.strings = pointer_of(map, entry);
			break;
		case DT_VERSYM:
			object.versions = pointer_of(map, entry);
			break;
		case DT_VERDEF:
			object.defined = pointer_of(map, entry);
			break;
		case DT_GNU_HASH:
			object.gnu_hash = pointer_of(map, entry);
			break;
		case DT_HASH:
			object.hash = pointer_of(map, entry);
			break;
		case DT_SONAME:
			soname = entry->d_un.d_val;
			has_soname = true;
			break;
		}
	}
	if (!object.symbols || !object.strings || (!object.gnu_hash && !object.hash))
		return false;
	if (has_soname)
		object.name = object.strings + soname;
	*ret = object;
	return true;
}

// Like ld.so: a symbol without a version matches any.
static bool has_version(const struct object *object, uint32_t index, const char *version)
{
	if (!object->versions || !version)
		return true;
	unsigned wanted = object->versions[index] & 0x7fff; // bit 15: hidden, not the default
	if (wanted == VER_NDX_LOCAL)
		return false;
	if (wanted == VER_NDX_GLOBAL || !object->defined)
		return true;
	for (const ElfW(Verdef) *entry = object->defined;;
	     entry = (const void *)((const char *)entry + entry->vd_next)) {
		const ElfW(Verdaux) *name = (const void *)((const char *)entry + entry->vd_aux);

		if (entry->vd_ndx == wanted)
			return is_equal(object->strings + name->vda_name, version);
		if (!entry->vd_next)
			return false;
	}
}

static void *definition(const struct object *object, uint32_t index, const char *name,
			const char *version)
{
	const ElfW(Sym) *symbol = &object->symbols[index];
	unsigned type = ELF64_ST_TYPE(symbol->st_info);

	if (symbol->st_shndx == SHN_UNDEF || !symbol->st_value ||
	    !is_equal(object->strings + symbol->st_name, name) ||
	    !has_version(object, index, version))
		return NULL;
	void *address = (void *)(object->base + symbol->st_value);
	if (type == STT_GNU_IFUNC) {
		void *(*resolve)(void) = (void *(*)(void))address;

		return resolve();
	}
	return type == STT_FUNC || type == STT_NOTYPE ? address : NULL;
}

// System V ABI, "Hash Table Section".
static void *find_by_hash(const struct object *object, const char *name, const char *version)
{
	uint32_t hash = 0;

	for (const char *c = name; *c; c++) {
		hash = (hash << 4) + (unsigned char)*c;
		hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
	}
	uint32_t bucket_count = object->hash[0], chain_count = object->hash[1];
	const uint32_t *buckets = object->hash + 2, *chains = buckets + bucket_count;
	if (!bucket_count)
		return NULL;
	for (uint32_t i = buckets[hash % bucket_count]; i && i < chain_count; i = chains[i]) {
		void *found = definition(object, i, name, version);

		if (found)
			return found;
	}
	return NULL;
}

// DT_GNU_HASH: four words, a Bloom filter of 64-bit words, buckets, chains whose last hash is odd.
static void *find_by_gnu_hash(const struct object *object, const char *name, const char *version)
{
	uint32_t hash = 5381;

	for (const char *c = name; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	uint32_t bucket_count = object->gnu_hash[0], first = object->gnu_hash[1];
	uint32_t filter_words = object->gnu_hash[2], shift = object->gnu_hash[3];
	const uint64_t *filter = (const uint64_t *)(object->gnu_hash + 4);
	const uint32_t *buckets = (const uint32_t *)(filter + filter_words);
	const uint32_t *chains = buckets + bucket_count;
	if (!bucket_count || !filter_words)
		return NULL;
	uint64_t word = filter[hash / 64 & (filter_words - 1)];
	if (!(word >> (hash & 63) & word >> (hash >> shift & 63) & 1))
		return NULL;
	uint32_t i = buckets[hash % bucket_count];
	if (i < first)
		return NULL;
	for (;; i++) {
		uint32_t chain = chains[i - first];

		if ((chain | 1) == (hash | 1)) {
			void *found = definition(object, i, name, version);

			if (found)
				return found;
		}
		if (chain & 1)
			return NULL;
	}
}

static void *find_in(const struct object *object, const char *name, const char *version)
{
	return object->gnu_hash ? find_by_gnu_hash(object, name, version)
				: find_by_hash(object, name, version);
}

static bool is_c_library(const struct object *object)
{
	return object->name && is_equal(object->name, "libc.so.6");
}

// A part of the C library before glibc 2.34, loaded before or after it.
static bool is_thread_library(const struct object *object)
{
	return object->name && is_equal(object->name, "libpthread.so.0");
}

// Objects that the program was started with are in the order in which the loader searches them, and
// stay loaded. Objects that are opened later come behind them, so the walk does not reach objects
// that may be closed, unless the C library lacks the function.
void *symbol_find(const char *name, const char *version)
{
	if (!&_r_debug)
		return NULL;
	// Opened by dlopen(3) we are behind the C library, and no object in between has the
	// function.
	bool is_behind_us = false;
	int count = 0;
	for (struct link_map *map = _r_debug.r_map; map && count++ < MAX_OBJECTS;
	     map = map->l_next) {
		struct object object;

		if (map->l_ld == _DYNAMIC) {
			is_behind_us = true;
			continue;
		}
		if (!read_object(map, &object))
			continue;
		if (!is_behind_us && !is_c_library(&object) && !is_thread_library(&object))
			continue;
		void *found = find_in(&object, name, version);
		if (found)
			return found;
	}
	return NULL;
}

int symbol_objects(void)
{
	if (!&_r_debug)
		return 0;
	int count = 0;
	for (struct link_map *map = _r_debug.r_map; map && count < MAX_OBJECTS; map = map->l_next)
		count++;
	return count;
}

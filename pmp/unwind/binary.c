// SPDX-License-Identifier: Apache-2.0
#include "unwind/binary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/trust.h"
#include "unwind/demangle.h"

// Beyond that many distinct addresses in one file the stacks are garbage.
#define MAX_SITES (1U << 20)

static uint64_t mix(uint64_t key)
{
	key *= 0x9e3779b97f4a7c15ULL;
	return key ^ (key >> 29);
}

static void binary_destroyp(struct stall_binary **binary)
{
	stall_binary_destroy(*binary);
}

static bool has_symtab(const struct stall_elf *elf)
{
	return stall_elf_section_by_type(elf, SHT_SYMTAB);
}

// A file that cannot be used counts as missing, and its error, which is taken over, is kept.
static struct stall_error *keep_error(struct stall_binary *binary, struct stall_error *err)
{
	char *earlier = binary->pack_error;

	if (asprintf(&binary->pack_error, "%s%s%s", earlier ? earlier : "", earlier ? "; " : "",
		     err->message) < 0)
		binary->pack_error = NULL;
	free(earlier);
	stall_error_destroy(err);
	return binary->pack_error ? NULL : &stall_enomem;
}

static struct stall_error *find_debug_file(struct stall_binary *binary,
					   const struct stall_search_dirs *dirs, const char *path)
{
	struct stall_error *err =
		stall_debug_file_open(dirs, binary->elf, path, &binary->debug, &binary->debug_path);

	return stall_is_distrust(err) ? keep_error(binary, err) : err;
}

static struct stall_error *find_pack(struct stall_binary *binary,
				     const struct stall_search_dirs *packs)
{
	char *path = NULL;
	struct stall_error *err =
		stall_pack_dirs_find_for(packs, binary->elf, &binary->pack, &path);

	if (err == &stall_enomem)
		return err;
	if (err)
		return keep_error(binary, err);
	if (path) {
		free(binary->debug_path);
		binary->debug_path = path;
	}
	return NULL;
}

static struct stall_error *init_tables(struct stall_binary *binary)
{
	binary->site_capacity = binary->name_capacity = 256;
	binary->sites = calloc(binary->site_capacity, sizeof(*binary->sites));
	binary->names = calloc(binary->name_capacity, sizeof(*binary->names));
	return binary->sites && binary->names ? NULL : &stall_enomem;
}

struct stall_error *stall_binary_create_packed(struct stall_pack *pack, char *path,
					       struct stall_binary **ret)
{
	_cleanup_(binary_destroyp) struct stall_binary *binary = calloc(1, sizeof(*binary));

	if (!binary) {
		stall_pack_destroy(pack);
		free(path);
		return &stall_enomem;
	}
	binary->pack = pack;
	binary->debug_path = path;
	struct stall_error *err = init_tables(binary);
	if (!err)
		err = stall_symbols_create(NULL, NULL, pack, &binary->symbols);
	if (err)
		return err;
	*ret = no_cleanup_ptr(binary);
	return NULL;
}

struct stall_error *stall_binary_create(struct stall_elf *elf, const struct stall_search_dirs *dirs,
					const struct stall_search_dirs *packs, const char *path,
					struct stall_binary **ret)
{
	_cleanup_(binary_destroyp) struct stall_binary *binary = calloc(1, sizeof(*binary));

	if (!binary) {
		stall_elf_destroy(elf);
		return &stall_enomem;
	}
	binary->elf = elf;
	struct stall_error *err = init_tables(binary);
	if (!err && dirs && !has_symtab(elf))
		err = find_debug_file(binary, dirs, path);
	if (!err && packs && !has_symtab(elf) && !(binary->debug && has_symtab(binary->debug)))
		err = find_pack(binary, packs);
	if (!err)
		err = stall_symbols_create(elf, binary->debug, binary->pack, &binary->symbols);
	if (!err)
		err = stall_cfi_create(elf, binary->debug, &binary->cfi);
	if (err)
		return err;
	*ret = no_cleanup_ptr(binary);
	return NULL;
}

void stall_binary_destroy(struct stall_binary *binary)
{
	if (!binary)
		return;
	for (size_t i = 0; binary->names && i < binary->name_capacity; i++) {
		for (struct stall_name *name = binary->names[i], *next; name; name = next) {
			next = name->next;
			free(name->symbol);
			free(name->linkage);
			free(name);
		}
	}
	for (size_t i = 0; i < binary->object_count; i++)
		free(binary->objects[i].name);
	free(binary->names);
	free(binary->sites);
	stall_symbols_destroy(binary->symbols);
	stall_cfi_destroy(binary->cfi);
	stall_elf_destroy(binary->debug);
	stall_elf_destroy(binary->elf);
	stall_pack_destroy(binary->pack);
	free(binary->debug_path);
	free(binary->pack_error);
	free(binary);
}

static struct stall_name *find_name(struct stall_binary *binary, uint64_t address)
{
	struct stall_name *name = binary->names[mix(address) & (binary->name_capacity - 1)];

	while (name && name->address != address)
		name = name->next;
	return name;
}

static bool grow_names(struct stall_binary *binary)
{
	size_t capacity = binary->name_capacity * 2;
	struct stall_name **grown = calloc(capacity, sizeof(*grown));

	if (!grown)
		return false;
	for (size_t i = 0; i < binary->name_capacity; i++) {
		for (struct stall_name *name = binary->names[i], *next; name; name = next) {
			struct stall_name **slot = &grown[mix(name->address) & (capacity - 1)];

			next = name->next;
			name->next = *slot;
			*slot = name;
		}
	}
	free(binary->names);
	binary->names = grown;
	binary->name_capacity = capacity;
	return true;
}

// Takes the linkage name over.
static struct stall_name *add_name(struct stall_binary *binary, char *linkage, uint64_t address)
{
	struct stall_name *name = calloc(1, sizeof(*name));

	if (!name || (binary->name_count >= binary->name_capacity && !grow_names(binary))) {
		free(name);
		free(linkage);
		return NULL;
	}
	struct stall_name **slot = &binary->names[mix(address) & (binary->name_capacity - 1)];
	char *demangled = stall_demangle(linkage);
	*name = (struct stall_name){
		.symbol = demangled ? demangled : linkage,
		.linkage = demangled ? linkage : NULL,
		.address = address,
		.next = *slot,
	};
	*slot = name;
	binary->name_count++;
	return name;
}

static struct stall_name *name_of(struct stall_binary *binary, uint64_t address)
{
	struct stall_symbol symbol;

	if (!stall_symbols_find_function(binary->symbols, address, &symbol))
		return NULL;
	struct stall_name *name = find_name(binary, symbol.address);
	if (!name)
		return add_name(binary, symbol.linkage, symbol.address);
	free(symbol.linkage);
	return name;
}

static void look_up(struct stall_binary *binary, uint64_t address, bool exact,
		    struct stall_site *ret)
{
	uint64_t inside = exact ? address : address - 1;

	*ret = (struct stall_site){.key = address * 2 + exact};
	if (binary->cfi)
		ret->row = stall_cfi_row(binary->cfi, inside, &ret->bad_cfi);
	// A signal handler returns to the very start of the trampoline; its unwind information
	// begins a byte early for that reason (glibc sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c),
	// its symbol does not.
	if (ret->row && ret->row->signal)
		inside = address;
	ret->name = name_of(binary, inside);
}

static struct stall_site *find_slot(struct stall_site *sites, size_t capacity, uint64_t key)
{
	size_t i = mix(key) & (capacity - 1);

	while (sites[i].key && sites[i].key != key)
		i = (i + 1) & (capacity - 1);
	return &sites[i];
}

static bool grow_sites(struct stall_binary *binary)
{
	size_t capacity = binary->site_capacity * 2;
	struct stall_site *grown = calloc(capacity, sizeof(*grown));

	if (!grown)
		return false;
	for (size_t i = 0; i < binary->site_capacity; i++) {
		if (binary->sites[i].key)
			*find_slot(grown, capacity, binary->sites[i].key) = binary->sites[i];
	}
	free(binary->sites);
	binary->sites = grown;
	binary->site_capacity = capacity;
	return true;
}

const struct stall_site *stall_binary_site(struct stall_binary *binary, uint64_t address,
					   bool exact)
{
	uint64_t key = address * 2 + exact;
	struct stall_site *slot;

	if (key == 0 || address >> 63) // no user address, and would be one key with another
		return NULL;
	slot = find_slot(binary->sites, binary->site_capacity, key);
	if (slot->key)
		return slot;
	if (binary->site_count >= MAX_SITES ||
	    (binary->site_count * 2 >= binary->site_capacity && !grow_sites(binary)))
		return NULL;
	slot = find_slot(binary->sites, binary->site_capacity, key);
	look_up(binary, address, exact, slot);
	binary->site_count++;
	return slot;
}

static void find_object(struct stall_binary *binary, const char *name,
			struct stall_known_object *ret)
{
	struct stall_symbol symbol = {};

	ret->found = stall_symbols_find_name(binary->symbols, name, &symbol);
	ret->address = symbol.address;
	ret->size = symbol.size;
	free(symbol.linkage);
}

bool stall_binary_find_object(struct stall_binary *binary, const char *name, uint64_t *ret_address,
			      uint64_t *ret_size)
{
	struct stall_known_object object = {};
	size_t i;

	for (i = 0; i < binary->object_count && strcmp(binary->objects[i].name, name) != 0; i++)
		;
	if (i < binary->object_count)
		object = binary->objects[i];
	else
		find_object(binary, name, &object);
	if (i == binary->object_count && i < STALL_KNOWN_OBJECTS) {
		object.name = strdup(name);
		if (object.name)
			binary->objects[binary->object_count++] = object;
	}
	if (!object.found)
		return false;
	*ret_address = object.address;
	*ret_size = object.size;
	return true;
}

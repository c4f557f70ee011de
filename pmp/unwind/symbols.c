// SPDX-License-Identifier: Apache-2.0
#include "unwind/symbols.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "unwind/debug_file.h"
#include "unwind/elf_identity.h"
#include "unwind/symbol_table.h"

#define MAX_SYMBOLS 8000000U // a table; Chromium with debug information has 1 million
#define MAX_STRINGS (1U << 30)
#define CHUNK 2048 // symbols read at a time

// A symbol table and its string table, on disk: names are read when they are asked for.
struct source {
	const struct stall_elf *elf; // NULL: a pack
	struct stall_pack *pack;
	uint64_t strings, strings_size; // in the file
	bool complete;			// .symtab: static functions too
	uint64_t slide; // what to add, where a debug file was linked at another address
};

#define MAX_SOURCES 5 // .symtab of the file and of its debug file, a pack, .dynsym, .gnu_debugdata

struct stall_symbols {
	struct source sources[MAX_SOURCES];
	unsigned int source_count;
	struct stall_elf *minidebug;
	const char *best;
	struct stall_symbol_table functions, objects;
};

static bool in_executable_section(const struct stall_elf *elf, uint16_t section)
{
	return section < elf->section_count && (elf->sections[section].sh_flags & SHF_EXECINSTR);
}

static struct stall_symbol_table *table_for(struct stall_symbols *symbols,
					    const struct stall_elf *elf, const Elf64_Sym *symbol)
{
	if (symbol->st_shndx == SHN_UNDEF || symbol->st_shndx >= SHN_LORESERVE || !symbol->st_name)
		return NULL;
	switch (ELF64_ST_TYPE(symbol->st_info)) {
	case STT_FUNC:
	case STT_GNU_IFUNC:
		return &symbols->functions;
	case STT_NOTYPE: // hand-written assembly without types
		return in_executable_section(elf, symbol->st_shndx) ? &symbols->functions : NULL;
	case STT_OBJECT:
		return symbol->st_size ? &symbols->objects : NULL;
	default: // thread-local symbols hold offsets, not addresses
		return NULL;
	}
}

static struct stall_error *add_symbols(struct stall_symbols *symbols, uint8_t source,
				       const Elf64_Sym *chunk, size_t count)
{
	const struct source *from = &symbols->sources[source];

	for (size_t i = 0; i < count; i++) {
		struct stall_symbol_table *table = table_for(symbols, from->elf, &chunk[i]);
		struct stall_symbol_entry entry = {
			.address = chunk[i].st_value + from->slide,
			.size = chunk[i].st_size,
			.name = chunk[i].st_name,
			.section = chunk[i].st_shndx,
			.info = chunk[i].st_info,
			.source = source,
		};

		if (table && !stall_symbol_table_add(table, &entry))
			return &stall_enomem;
	}
	return NULL;
}

static struct stall_error *read_table(struct stall_symbols *symbols, uint8_t source,
				      const Elf64_Shdr *section)
{
	_cleanup_free_ Elf64_Sym *chunk = malloc(CHUNK * sizeof(*chunk));
	uint64_t total = section->sh_size / sizeof(*chunk);
	struct stall_error *err = NULL;

	if (!chunk)
		return &stall_enomem;
	if (total > MAX_SYMBOLS)
		return stall_error_create(STALL_ERROR_LIMIT, "symbol table of %llu entries",
					  (unsigned long long)total);
	for (uint64_t at = 0; !err && at < total; at += CHUNK) {
		size_t count = total - at < CHUNK ? (size_t)(total - at) : CHUNK;

		err = stall_elf_read(symbols->sources[source].elf,
				     section->sh_offset + at * sizeof(*chunk), chunk,
				     count * sizeof(*chunk));
		if (!err)
			err = add_symbols(symbols, source, chunk, count);
	}
	return err;
}

// prelink moves a library after its debug file was split off.
static uint64_t slide_between(const struct stall_elf *main, uint64_t other)
{
	uint64_t address = main ? stall_elf_text_address(main) : 0;

	return address && other ? address - other : 0;
}

// A table that cannot be read counts as missing: the file is not trusted, and other tables may have
// the names. Only running out of memory is an error.
static struct stall_error *add_source(struct stall_symbols *symbols, const struct stall_elf *main,
				      const struct stall_elf *elf, uint32_t type, bool *ret_found)
{
	const Elf64_Shdr *section = stall_elf_section_by_type(elf, type);

	*ret_found = false;
	if (!section || section->sh_entsize != sizeof(Elf64_Sym) ||
	    section->sh_link >= elf->section_count)
		return NULL;
	const Elf64_Shdr *strings = &elf->sections[section->sh_link];
	if (strings->sh_type != SHT_STRTAB || strings->sh_size > MAX_STRINGS)
		return NULL;
	uint8_t index = (uint8_t)symbols->source_count;
	size_t before = symbols->functions.count + symbols->objects.count;
	symbols->sources[index] = (struct source){
		.elf = elf,
		.strings = strings->sh_offset,
		.strings_size = strings->sh_size,
		.complete = type == SHT_SYMTAB,
		.slide = elf == main ? 0 : slide_between(main, stall_elf_text_address(elf)),
	};
	symbols->source_count++;
	struct stall_error *err = read_table(symbols, index, section);
	if (err == &stall_enomem)
		return err;
	stall_error_destroy(err);
	*ret_found = symbols->functions.count + symbols->objects.count > before;
	return NULL;
}

static struct stall_error *add_dynamic(struct stall_symbols *symbols, const struct stall_elf *elf)
{
	bool found;
	struct stall_error *err = add_source(symbols, elf, elf, SHT_DYNSYM, &found);

	if (err)
		return err;
	if (found)
		symbols->best = ".dynsym";
	stall_error_destroy(stall_minidebug_open(elf, &symbols->minidebug));
	if (!symbols->minidebug)
		return NULL;
	err = add_source(symbols, elf, symbols->minidebug, SHT_SYMTAB, &found);
	if (!err && found)
		symbols->best = ".gnu_debugdata";
	return err;
}

struct adding {
	struct stall_symbols *symbols;
	uint8_t source;
	bool no_memory;
};

static bool add_packed(void *arg, const struct stall_pack_symbol *symbol)
{
	struct adding *adding = arg;
	struct stall_symbols *symbols = adding->symbols;
	const struct stall_symbol_entry entry = {
		.address = symbol->address + symbols->sources[adding->source].slide,
		.size = symbol->size,
		.name = symbol->name,
		.info = symbol->info,
		.source = adding->source,
	};

	adding->no_memory =
		!stall_symbol_table_add(symbol->is_object ? &symbols->objects : &symbols->functions,
					&entry);
	return !adding->no_memory;
}

static struct stall_error *add_pack(struct stall_symbols *symbols, const struct stall_elf *elf,
				    struct stall_pack *pack)
{
	const struct stall_pack_header *header = stall_pack_header(pack);
	struct adding adding = {.symbols = symbols, .source = (uint8_t)symbols->source_count};

	symbols->sources[symbols->source_count++] = (struct source){
		.pack = pack,
		.strings_size = header->names_size,
		.slide = slide_between(elf, header->text_address),
	};
	// What came before a damaged part is as good as the rest of the file.
	stall_error_destroy(stall_pack_each(pack, add_packed, &adding));
	return adding.no_memory ? &stall_enomem : NULL;
}

static struct stall_error *read_sources(struct stall_symbols *symbols, const struct stall_elf *elf,
					const struct stall_elf *debug, struct stall_pack *pack)
{
	struct stall_error *err = NULL;
	bool found = false;

	if (elf)
		err = add_source(symbols, elf, elf, SHT_SYMTAB, &found);
	if (err)
		return err;
	if (found) {
		symbols->best = ".symtab";
		return NULL;
	}
	if (debug) {
		err = add_source(symbols, elf, debug, SHT_SYMTAB, &found);
		if (err)
			return err;
		if (found) {
			symbols->best = "separate";
			return NULL;
		}
	}
	// A pack of exported names has no more than the file itself.
	if (pack && (!elf || stall_pack_header(pack)->symbols != STALL_PACK_DYNSYM)) {
		err = add_pack(symbols, elf, pack);
		if (err)
			return err;
		if (symbols->functions.count + symbols->objects.count) {
			symbols->best = "pack";
			return NULL;
		}
	}
	return elf ? add_dynamic(symbols, elf) : NULL;
}

static void symbols_destroyp(struct stall_symbols **symbols)
{
	stall_symbols_destroy(*symbols);
}

struct stall_error *stall_symbols_create(const struct stall_elf *elf, const struct stall_elf *debug,
					 struct stall_pack *pack, struct stall_symbols **ret)
{
	_cleanup_(symbols_destroyp) struct stall_symbols *symbols = calloc(1, sizeof(*symbols));

	if (!symbols)
		return &stall_enomem;
	symbols->best = "none";
	struct stall_error *err = read_sources(symbols, elf, debug, pack);
	if (!err)
		err = stall_symbol_table_finish(&symbols->functions);
	if (!err)
		err = stall_symbol_table_finish(&symbols->objects);
	if (err)
		return err;
	*ret = no_cleanup_ptr(symbols);
	return NULL;
}

void stall_symbols_destroy(struct stall_symbols *symbols)
{
	if (!symbols)
		return;
	stall_symbol_table_deinit(&symbols->functions);
	stall_symbol_table_deinit(&symbols->objects);
	stall_elf_destroy(symbols->minidebug);
	free(symbols);
}

const char *stall_symbols_source(const struct stall_symbols *symbols)
{
	return symbols->best;
}

size_t stall_symbols_count(const struct stall_symbols *symbols)
{
	return symbols->functions.count + symbols->objects.count;
}

// The name at that place of the string table, cut at "@version". NULL: empty, torn or too long.
static char *read_name(const struct source *source, uint64_t name)
{
	char buf[STALL_MAX_LINKAGE];

	if (source->pack) {
		const char *packed = stall_pack_name(source->pack, (uint32_t)name);

		return packed ? strdup(packed) : NULL;
	}
	if (name >= source->strings_size)
		return NULL;
	for (size_t size = 256;; size = sizeof(buf)) {
		uint64_t left = source->strings_size - name;
		size_t want = left < size ? (size_t)left : size;
		struct stall_error *err =
			stall_elf_read(source->elf, source->strings + name, buf, want);

		if (err) {
			stall_error_destroy(err);
			return NULL;
		}
		size_t length = strnlen(buf, want);
		if (length < want) {
			char *version = strchr(buf, '@');

			if (version && version != buf)
				*version = 0;
			return buf[0] ? strdup(buf) : NULL;
		}
		if (want < size || size == sizeof(buf))
			return NULL;
	}
}

static size_t leading_underscores(const char *name)
{
	// Of "_Z" the underscore is part of the encoding.
	return strncmp(name, "_Z", 2) == 0 ? 0 : strspn(name, "_");
}

static int binding_rank(const struct stall_symbol_entry *entry)
{
	switch (ELF64_ST_BIND(entry->info)) {
	case STB_GLOBAL:
	case STB_GNU_UNIQUE:
		return 0;
	case STB_WEAK:
		return 1;
	default:
		return 2;
	}
}

// Prefers the more familiar of two names of one address: exported before local, write before
// __write, global before weak, typed before untyped, short before long.
static bool is_better(const struct stall_symbol_entry *a, const char *a_name,
		      const struct stall_symbol_entry *b, const char *b_name)
{
	int a_local = binding_rank(a) == 2, b_local = binding_rank(b) == 2;
	size_t a_length = strlen(a_name), b_length = strlen(b_name);

	if (a_local != b_local)
		return a_local < b_local;
	if (leading_underscores(a_name) != leading_underscores(b_name))
		return leading_underscores(a_name) < leading_underscores(b_name);
	if (binding_rank(a) != binding_rank(b))
		return binding_rank(a) < binding_rank(b);
	if (ELF64_ST_TYPE(a->info) != ELF64_ST_TYPE(b->info))
		return ELF64_ST_TYPE(a->info) > ELF64_ST_TYPE(b->info);
	if (a_length != b_length)
		return a_length < b_length;
	return strcmp(a_name, b_name) < 0;
}

#define MAX_BACK 65536 // entries read behind the address, in a hostile table
#define MAX_ALIASES 256

// Among the entries that start at entries[last].address and satisfy size > beyond (or, with
// `unsized`, size 0), the best name.
static bool best_alias(struct stall_symbols *symbols, const struct stall_symbol_table *table,
		       size_t last, uint64_t beyond, bool unsized, struct stall_symbol *ret)
{
	const struct stall_symbol_entry *best = NULL;
	_cleanup_free_ char *best_name = NULL;
	uint64_t address = table->entries[last].address;

	for (size_t i = last + 1, tried = 0; i-- > 0 && tried < MAX_ALIASES; tried++) {
		const struct stall_symbol_entry *entry = &table->entries[i];

		if (entry->address != address)
			break;
		if (unsized ? entry->size != 0 : entry->size <= beyond)
			continue;
		char *name = read_name(&symbols->sources[entry->source], entry->name);
		if (!name)
			continue;
		if (best && !is_better(entry, name, best, best_name)) {
			free(name);
			continue;
		}
		free(best_name);
		best_name = name;
		best = entry;
	}
	if (!best)
		return false;
	*ret = (struct stall_symbol){no_cleanup_ptr(best_name), best->address, best->size};
	return true;
}

// The innermost sized symbol that covers the address.
static bool find_sized(struct stall_symbols *symbols, const struct stall_symbol_table *table,
		       uint64_t address, struct stall_symbol *ret)
{
	size_t end = stall_symbol_table_upper_bound(table, address);

	for (size_t i = end, tried = 0; i-- > 0 && tried < MAX_BACK; tried++) {
		if (table->reach[i] <= address)
			return false;
		if (address - table->entries[i].address >= table->entries[i].size)
			continue;
		// Aliases with the same start may sort on either side of this one.
		uint64_t start = table->entries[i].address;
		size_t last = stall_symbol_table_upper_bound(table, start) - 1;
		if (best_alias(symbols, table, last, address - start, false, ret))
			return true;
		while (i > 0 && table->entries[i - 1].address == start)
			i--;
	}
	return false;
}

#define MAX_UNSIZED 4096

// Hand-written assembly without .size: covered up to the next symbol of the same section, and only
// where the table has static functions too, since otherwise the next one may not be in it.
static bool find_unsized(struct stall_symbols *symbols, uint64_t address, struct stall_symbol *ret)
{
	const struct stall_symbol_table *table = &symbols->functions;
	size_t end = stall_symbol_table_upper_bound(table, address);

	if (end == 0)
		return false;
	const struct stall_symbol_entry *entry = &table->entries[end - 1];
	const struct source *source = &symbols->sources[entry->source];
	if (!source->complete || entry->section >= source->elf->section_count ||
	    address - entry->address >= MAX_UNSIZED)
		return false;
	const Elf64_Shdr *section = &source->elf->sections[entry->section];
	if (address - source->slide - section->sh_addr >= section->sh_size)
		return false;
	// All names of that address must be without size: else a sized one ended before.
	for (size_t i = end; i-- > 0 && table->entries[i].address == entry->address;) {
		if (table->entries[i].size)
			return false;
	}
	if (!best_alias(symbols, table, end - 1, 0, true, ret))
		return false;
	uint64_t next = section->sh_addr + source->slide + section->sh_size;
	if (end < table->count && table->entries[end].address < next)
		next = table->entries[end].address;
	ret->size = next - ret->address;
	return true;
}

bool stall_symbols_find_function(struct stall_symbols *symbols, uint64_t address,
				 struct stall_symbol *ret)
{
	return find_sized(symbols, &symbols->functions, address, ret) ||
	       find_unsized(symbols, address, ret);
}

bool stall_symbols_find_object(struct stall_symbols *symbols, uint64_t address,
			       struct stall_symbol *ret)
{
	return find_sized(symbols, &symbols->objects, address, ret);
}

// "a::b" -> "_ZN1a1bE", "b" -> "_ZL1b" (a static of C++; plain globals keep their name).
static bool mangle(const char *name, char *buf, size_t size)
{
	size_t at;

	if (strlen(name) > 256)
		return false;
	if (!strstr(name, "::"))
		return snprintf(buf, size, "_ZL%zu%s", strlen(name), name) < (int)size;
	at = (size_t)snprintf(buf, size, "_ZN");
	while (*name) {
		size_t length = strcspn(name, ":");

		at += (size_t)snprintf(buf + at, size - at, "%zu%.*s", length, (int)length, name);
		if (at >= size - 2)
			return false;
		name += length;
		name += strspn(name, ":");
	}
	buf[at++] = 'E';
	buf[at] = 0;
	return true;
}

// All names of a source.
struct strings {
	const struct source *from;
	uint8_t *loaded; // NULL: a pack's
};

static void strings_deinit(struct strings *strings)
{
	free(strings->loaded);
}

static struct stall_error *load_strings(const struct source *from, struct strings *ret)
{
	ret->from = from;
	if (from->pack)
		return NULL;
	return stall_elf_load(from->elf, from->strings, from->strings_size, MAX_STRINGS,
			      &ret->loaded);
}

// Valid until the next one. NULL: there is none, or it is damaged.
static const char *string_of(const struct strings *strings, const struct stall_symbol_entry *entry)
{
	const struct source *from = strings->from;

	if (from->pack)
		return stall_pack_name(from->pack, entry->name);
	return entry->name < from->strings_size ? (char *)strings->loaded + entry->name : NULL;
}

static bool name_is(const char *text, const char *name, size_t length)
{
	return strncmp(text, name, length) == 0 && (text[length] == 0 || text[length] == '@');
}

static bool search_names(const struct stall_symbols *symbols, unsigned int source, const char *name,
			 const struct stall_symbol_entry **ret)
{
	_cleanup_(strings_deinit) struct strings strings = {};
	size_t length = strlen(name);
	struct stall_error *err = load_strings(&symbols->sources[source], &strings);

	if (err) {
		stall_error_destroy(err);
		return false;
	}
	const struct stall_symbol_entry *best = NULL;
	for (size_t i = 0; i < symbols->objects.count; i++) {
		const struct stall_symbol_entry *entry = &symbols->objects.entries[i];
		const char *text = entry->source == source ? string_of(&strings, entry) : NULL;

		if (!text || !name_is(text, name, length))
			continue;
		if (!best || binding_rank(entry) < binding_rank(best))
			best = entry;
	}
	*ret = best;
	return best;
}

static struct stall_error *visit_source(const struct stall_symbols *symbols, unsigned int source,
					stall_symbols_visit *visit, void *arg)
{
	_cleanup_(strings_deinit) struct strings strings = {};
	struct stall_error *err = load_strings(&symbols->sources[source], &strings);

	if (err)
		return err;
	for (size_t i = 0; i < symbols->functions.count; i++) {
		const struct stall_symbol_entry *entry = &symbols->functions.entries[i];

		if (entry->source != source || ELF64_ST_TYPE(entry->info) != STT_FUNC)
			continue;
		const char *name = string_of(&strings, entry);
		if (name && strnlen(name, STALL_MAX_LINKAGE) < STALL_MAX_LINKAGE)
			visit(arg, name, entry->address);
	}
	return NULL;
}

struct stall_error *stall_symbols_each_function(const struct stall_symbols *symbols,
						stall_symbols_visit *visit, void *arg)
{
	for (unsigned int source = 0; source < symbols->source_count; source++) {
		struct stall_error *err = visit_source(symbols, source, visit, arg);

		if (err)
			return err;
	}
	return NULL;
}

// What a function covers; 0: nothing.
static uint64_t covered(struct stall_symbols *symbols, const struct stall_symbol_entry *entry,
			bool is_object)
{
	struct stall_symbol symbol;

	if (entry->size || is_object)
		return entry->size;
	if (!stall_symbols_find_function(symbols, entry->address, &symbol))
		return 0;
	free(symbol.linkage);
	if (symbol.address != entry->address)
		return 0;
	return symbol.size < MAX_UNSIZED ? symbol.size : MAX_UNSIZED;
}

static struct stall_error *visit_entries(struct stall_symbols *symbols,
					 const struct strings *strings, bool is_object,
					 stall_symbols_visit_info *visit, void *arg)
{
	const struct stall_symbol_table *table =
		is_object ? &symbols->objects : &symbols->functions;
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < table->count; i++) {
		const struct stall_symbol_entry *entry = &table->entries[i];
		const struct stall_symbol_info info = {
			.linkage = string_of(&strings[entry->source], entry),
			.address = entry->address,
			.size = covered(symbols, entry, is_object),
			.info = entry->info,
			.is_object = is_object,
		};

		if (info.linkage && info.size)
			err = visit(arg, &info);
	}
	return err;
}

struct stall_error *stall_symbols_each(struct stall_symbols *symbols,
				       stall_symbols_visit_info *visit, void *arg)
{
	struct strings strings[MAX_SOURCES] = {};
	struct stall_error *err = NULL;

	for (unsigned int i = 0; !err && i < symbols->source_count; i++)
		err = load_strings(&symbols->sources[i], &strings[i]);
	if (!err)
		err = visit_entries(symbols, strings, false, visit, arg);
	if (!err)
		err = visit_entries(symbols, strings, true, visit, arg);
	for (size_t i = 0; i < MAX_SOURCES; i++)
		strings_deinit(&strings[i]);
	return err;
}

bool stall_symbols_find_name(struct stall_symbols *symbols, const char *name,
			     struct stall_symbol *ret)
{
	char mangled[1024];
	const struct stall_symbol_entry *entry;
	const char *names[] = {name, mangle(name, mangled, sizeof(mangled)) ? mangled : NULL};

	for (size_t n = 0; n < 2 && names[n]; n++) {
		for (unsigned int source = 0; source < symbols->source_count; source++) {
			if (!search_names(symbols, source, names[n], &entry))
				continue;
			char *linkage = strdup(names[n]);

			if (!linkage)
				return false;
			*ret = (struct stall_symbol){linkage, entry->address, entry->size};
			return true;
		}
	}
	return false;
}

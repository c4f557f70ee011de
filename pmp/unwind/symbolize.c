// SPDX-License-Identifier: Apache-2.0
#include "unwind/symbolize.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proc/path_open.h"
#include "unwind/binary.h"
#include "unwind/debug_file.h"
#include "unwind/file_index.h"
#include "unwind/pack_dirs.h"
#include "unwind/search_dirs.h"

#define MAX_OPEN 512 // files kept open; no real list needs more

// A requested file, found or not.
struct known {
	char *build_id, *path;	     // as requested; may be NULL
	struct stall_binary *binary; // NULL: there is none
	char *file;
};

struct stall_symbolizer {
	struct stall_search_dirs debug_dirs, pack_dirs;
	size_t dir_count; // of debug_dirs: those that were given
	bool scanned;
	struct stall_file_index index;
	struct known known[MAX_OPEN];
	size_t known_count;
};

static void symbolizer_destroyp(struct stall_symbolizer **symbolizer)
{
	stall_symbolizer_destroy(*symbolizer);
}

struct stall_error *stall_symbolizer_create(const struct stall_symbolizer_options *options,
					    struct stall_symbolizer **ret)
{
	const char *const *dirs = options->dirs;
	size_t count = options->dir_count;
	_cleanup_(symbolizer_destroyp) struct stall_symbolizer *symbolizer =
		calloc(1, sizeof(*symbolizer));

	if (!symbolizer)
		return &stall_enomem;
	// Each of them must be there: they come before the system's.
	for (size_t i = 0; i < count; i++) {
		int root;
		struct stall_error *err = stall_path_add_root(dirs[i], STALL_PATH_TRUSTED, &root);

		if (err)
			return err;
	}
	symbolizer->dir_count = count;
	struct stall_error *err =
		stall_search_dirs_init(&symbolizer->debug_dirs, dirs, count, STALL_DEBUG_DIR);
	if (!err)
		err = stall_search_dirs_init(&symbolizer->pack_dirs, options->pack_dirs,
					     options->pack_dir_count, STALL_PACK_DIR);
	if (err)
		return err;
	*ret = no_cleanup_ptr(symbolizer);
	return NULL;
}

void stall_symbolizer_destroy(struct stall_symbolizer *symbolizer)
{
	if (!symbolizer)
		return;
	for (size_t i = 0; i < symbolizer->known_count; i++) {
		stall_binary_destroy(symbolizer->known[i].binary);
		free(symbolizer->known[i].build_id);
		free(symbolizer->known[i].path);
		free(symbolizer->known[i].file);
	}
	stall_search_dirs_deinit(&symbolizer->debug_dirs);
	stall_search_dirs_deinit(&symbolizer->pack_dirs);
	stall_file_index_deinit(&symbolizer->index);
	free(symbolizer);
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_build_id(const char *text)
{
	size_t length = strlen(text);

	return length >= 4 && length <= 2 * STALL_BUILD_ID_MAX &&
	       strspn(text, "0123456789abcdef") == length;
}

// The best file so far: one with static functions is better than one without.
struct search {
	struct stall_symbolizer *symbolizer;
	const char *build_id; // NULL: any
	struct stall_elf *elf;
	char *file;
	bool complete;
};

// Takes both over.
static void offer(struct search *search, struct stall_elf *elf, char *file)
{
	char hex[2 * STALL_BUILD_ID_MAX + 1];
	bool complete = elf && stall_elf_section_by_type(elf, SHT_SYMTAB);

	if (elf)
		stall_elf_build_id_text(elf, hex);
	if (!elf || !file || (search->build_id && strcmp(hex, search->build_id) != 0) ||
	    (search->elf && !(complete && !search->complete))) {
		stall_elf_destroy(elf);
		free(file);
		return;
	}
	stall_elf_destroy(search->elf);
	free(search->file);
	search->elf = elf;
	search->file = file;
	search->complete = complete;
}

static void offer_file(struct search *search, int fd, const char *path)
{
	struct stall_elf *elf = NULL;

	stall_error_destroy(stall_elf_open(fd, &elf));
	if (elf)
		offer(search, elf, strdup(path));
}

static struct stall_error *scan_dirs(struct stall_symbolizer *symbolizer)
{
	struct stall_error *err = NULL;

	if (symbolizer->scanned)
		return NULL;
	symbolizer->scanned = true;
	for (size_t i = 0; !err && i < symbolizer->dir_count; i++)
		err = stall_file_index_add(&symbolizer->index, &symbolizer->debug_dirs, i);
	return err;
}

static struct stall_error *search_by_build_id(struct search *search)
{
	struct stall_symbolizer *symbolizer = search->symbolizer;
	struct stall_elf *elf = NULL;
	char *file = NULL;

	struct stall_error *err =
		stall_debug_dirs_find(&symbolizer->debug_dirs, search->build_id, &elf, &file);
	if (elf)
		offer(search, elf, file);
	if (err || search->complete)
		return err;
	err = scan_dirs(symbolizer);
	for (size_t i = 0; !err && !search->complete && i < symbolizer->index.count; i++) {
		const struct stall_indexed_file *indexed = &symbolizer->index.files[i];
		char path[2 * PATH_MAX];
		int fd;

		if (strcmp(indexed->build_id, search->build_id))
			continue;
		snprintf(path, sizeof(path), "%s/%s",
			 symbolizer->debug_dirs.dirs[indexed->dir].path, indexed->name);
		err = stall_search_dirs_open(&symbolizer->debug_dirs, indexed->dir, indexed->name,
					     &fd);
		if (!err)
			offer_file(search, fd, path);
	}
	return err;
}

// A pack alone names functions, too.
static struct stall_error *find_pack(struct search *search, struct stall_binary **ret)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
	char *path = NULL;
	struct stall_error *err = stall_pack_dirs_find(&search->symbolizer->pack_dirs,
						       search->build_id, &pack, &path);

	if (err || !pack)
		return err;
	return stall_binary_create_packed(no_cleanup_ptr(pack), path, ret);
}

static void offer_named(struct search *search, const char *path)
{
	const struct stall_path named = {.folder = AT_FDCWD, .name = path};
	int fd;
	_cleanup_error_ struct stall_error *err =
		stall_path_open(&named, STALL_PATH_READ, &fd, NULL);

	if (!err)
		offer_file(search, fd, path);
}

static struct stall_error *find_file(struct search *search, const char *path,
				     struct stall_binary **ret)
{
	struct stall_error *err = search->build_id ? search_by_build_id(search) : NULL;

	// The program itself, as the request names it: no other is searched for.
	if (!err && path && !search->complete)
		offer_named(search, path);
	if (!err && search->elf) {
		struct stall_elf *elf = search->elf;

		search->elf = NULL;
		err = stall_binary_create(elf, &search->symbolizer->debug_dirs,
					  &search->symbolizer->pack_dirs, path, ret);
	} else if (!err && search->build_id) {
		err = find_pack(search, ret);
	}
	if (err) {
		stall_elf_destroy(search->elf);
		free(search->file);
		search->file = NULL;
	}
	return err;
}

static struct stall_error *get_known(struct stall_symbolizer *symbolizer, const char *build_id,
				     const char *path, struct known **ret)
{
	struct search search = {.symbolizer = symbolizer, .build_id = build_id};
	struct stall_binary *binary = NULL;

	for (size_t i = 0; i < symbolizer->known_count; i++) {
		struct known *known = &symbolizer->known[i];

		if (same_text(known->build_id, build_id) && same_text(known->path, path)) {
			*ret = known;
			return NULL;
		}
	}
	if (symbolizer->known_count == MAX_OPEN)
		return stall_error_create(STALL_ERROR_LIMIT, "more than %d files", MAX_OPEN);
	struct stall_error *err = find_file(&search, path, &binary);
	if (err)
		return err;
	struct known *known = &symbolizer->known[symbolizer->known_count++];
	*known = (struct known){
		.build_id = build_id ? strdup(build_id) : NULL,
		.path = path ? strdup(path) : NULL,
		.binary = binary,
		.file = search.file,
	};
	*ret = known;
	return NULL;
}

static void look_up(struct stall_binary *binary, uint64_t address, bool exact,
		    struct stall_symbolized *ret)
{
	const struct stall_site *site = stall_binary_site(binary, address, exact);

	*ret = (struct stall_symbolized){};
	if (!site || !site->name)
		return;
	ret->symbol = site->name->symbol;
	ret->linkage = site->name->linkage;
	ret->offset = address - site->name->address;
}

struct stall_error *stall_symbolizer_lookup(struct stall_symbolizer *symbolizer,
					    const char *build_id, const char *path,
					    const uint64_t *addresses, const bool *callers,
					    size_t count, struct stall_symbolized *ret,
					    const char **ret_file, bool *ret_is_pack)
{
	struct known *known = NULL;

	if (build_id && !is_build_id(build_id))
		return stall_error_create(STALL_ERROR_FORMAT, "not a build-id: %.80s", build_id);
	if (!build_id && !path)
		return stall_error_create(STALL_ERROR_USAGE, "neither a build-id nor a path");
	struct stall_error *err = get_known(symbolizer, build_id, path, &known);
	if (err)
		return err;
	if (!known->binary)
		return stall_error_create(STALL_ERROR_OTHER,
					  build_id ? "no file with build-id %s: give its directory "
						     "with --debug-dir, or that of its pack with "
						     "--pack-dir"
						   : "cannot read %s",
					  build_id ? build_id : path);
	for (size_t i = 0; i < count; i++)
		look_up(known->binary, addresses[i], !(callers && callers[i]), &ret[i]);
	*ret_file = known->binary->debug_path ? known->binary->debug_path : known->file;
	*ret_is_pack = !strcmp(stall_symbols_source(known->binary->symbols), "pack");
	return NULL;
}

// SPDX-License-Identifier: Apache-2.0
#include "unwind/file_index.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/path_open.h"
#include "unwind/elf_file.h"

#define MAX_DEPTH 16
#define MAX_ENTRIES 200000
#define PIECE ((size_t)64 << 10)

// The names of a folder on the way, from one of the search dirs on.
struct walk {
	struct stall_file_index *index;
	const struct stall_search_dirs *dirs;
	size_t dir;
	unsigned int depth;
};

static struct stall_error *add_file(const struct walk *walk, const char *name)
{
	struct stall_file_index *index = walk->index;
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = NULL;
	char hex[2 * STALL_BUILD_ID_MAX + 1];
	int fd;
	struct stall_error *err = stall_search_dirs_open(walk->dirs, walk->dir, name, &fd);

	if (!err)
		err = stall_elf_open(fd, &elf);
	if (err) { // not an ELF file: most are not
		stall_error_destroy(err);
		return NULL;
	}
	if (!elf->build_id_size)
		return NULL;
	if (!stall_array_reserve(&index->files, index->count, 1, &index->capacity))
		return &stall_enomem;
	stall_elf_build_id_text(elf, hex);
	struct stall_indexed_file file = {strdup(hex), strdup(name), walk->dir};
	index->files[index->count++] = file;
	return file.build_id && file.name ? NULL : &stall_enomem;
}

static struct stall_error *add_folder(struct walk *walk, const char *name);

static struct stall_error *add_entry(struct walk *walk, const char *folder,
				     const struct stall_folder_entry *entry)
{
	char name[PATH_MAX];

	if (snprintf(name, sizeof(name), "%s%s%s", folder, *folder ? "/" : "", entry->name) >=
	    (int)sizeof(name))
		return NULL;
	if (entry->type != DT_DIR && entry->type != DT_UNKNOWN)
		return add_file(walk, name);
	walk->depth++;
	struct stall_error *err = add_folder(walk, name);
	walk->depth--;
	if (!err || err->errnum != ENOTDIR)
		return err;
	stall_error_destroy(err);
	return add_file(walk, name);
}

static struct stall_error *add_entries(struct walk *walk, const char *folder, const char *piece,
				       size_t size)
{
	struct stall_folder_entry entry;
	struct stall_error *err = NULL;

	for (size_t at = 0; !err && stall_folder_entry_next(piece, size, &at, &entry);) {
		if (++walk->index->seen > MAX_ENTRIES)
			return stall_error_create(STALL_ERROR_LIMIT,
						  "%s/%s: more than %d files below the debug "
						  "directories: give a smaller one",
						  walk->dirs->dirs[walk->dir].path, folder,
						  MAX_ENTRIES);
		err = add_entry(walk, folder, &entry);
	}
	return err;
}

static struct stall_error *add_folder(struct walk *walk, const char *name)
{
	const struct stall_path path = {.folder = walk->dirs->dirs[walk->dir].root,
					.name = *name ? name : "."};
	int fd;

	if (walk->depth > MAX_DEPTH)
		return NULL;
	struct stall_error *err =
		stall_path_open(&path, STALL_PATH_FOLDER | STALL_PATH_NOFOLLOW, &fd, NULL);
	if (err)
		return err;
	_cleanup_close_ int folder = fd;
	_cleanup_free_ char *piece = malloc(PIECE);
	if (!piece)
		return &stall_enomem;
	for (size_t size = 1; !err && size;) {
		err = stall_folder_next(folder, piece, PIECE, &size);
		if (!err)
			err = add_entries(walk, name, piece, size);
	}
	return err;
}

struct stall_error *stall_file_index_add(struct stall_file_index *index,
					 const struct stall_search_dirs *dirs, size_t dir)
{
	struct walk walk = {index, dirs, dir, 0};

	return add_folder(&walk, "");
}

void stall_file_index_deinit(struct stall_file_index *index)
{
	for (size_t i = 0; i < index->count; i++) {
		free(index->files[i].build_id);
		free(index->files[i].name);
	}
	free(index->files);
	*index = (struct stall_file_index){};
}

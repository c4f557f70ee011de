// SPDX-License-Identifier: Apache-2.0
#include "unwind/file_index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "unwind/debug_file.h"
#include "unwind/elf_file.h"

#define MAX_DEPTH 16
#define MAX_ENTRIES 200000

static struct stall_error *add_file(struct stall_file_index *index, int dir, const char *name,
				    const char *path)
{
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = NULL;
	char hex[2 * STALL_BUILD_ID_MAX + 1];
	int fd = stall_open_file_at(dir, name);

	if (fd < 0)
		return NULL;
	struct stall_error *err = stall_elf_open(fd, &elf);
	if (err) { // not an ELF file: most are not
		stall_error_destroy(err);
		return NULL;
	}
	if (!elf->build_id_size)
		return NULL;
	if (index->count == index->capacity) {
		size_t capacity = index->capacity ? index->capacity * 2 : 64;
		struct stall_indexed_file *grown =
			reallocarray(index->files, capacity, sizeof(*grown));

		if (!grown)
			return &stall_enomem;
		index->files = grown;
		index->capacity = capacity;
	}
	stall_elf_build_id_text(elf, hex);
	struct stall_indexed_file file = {strdup(hex), strdup(path)};
	index->files[index->count++] = file;
	return file.build_id && file.path ? NULL : &stall_enomem;
}

static struct stall_error *add_dir(struct stall_file_index *index, int fd, const char *path,
				   int depth);

static struct stall_error *add_entry(struct stall_file_index *index, int dir, const char *dir_path,
				     const struct dirent *entry, int depth)
{
	char path[PATH_MAX];

	if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
	    snprintf(path, sizeof(path), "%s/%s", dir_path, entry->d_name) >= (int)sizeof(path))
		return NULL;
	int fd = openat(dir, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		return add_dir(index, fd, path, depth + 1);
	return add_file(index, dir, entry->d_name, path);
}

// Takes the descriptor over.
static struct stall_error *add_dir(struct stall_file_index *index, int fd, const char *path,
				   int depth)
{
	struct stall_error *err = NULL;
	_cleanup_closedir_ DIR *dir = fdopendir(fd);

	if (!dir) {
		close(fd);
		return &stall_enomem;
	}
	if (depth > MAX_DEPTH)
		return NULL;
	for (struct dirent *entry; !err && (entry = readdir(dir));) {
		if (++index->seen > MAX_ENTRIES)
			return stall_error_create(STALL_ERROR_LIMIT,
						  "%s: more than %d files below the debug "
						  "directories: give a smaller one",
						  path, MAX_ENTRIES);
		err = add_entry(index, dirfd(dir), path, entry, depth);
	}
	return err;
}

struct stall_error *stall_file_index_add(struct stall_file_index *index, const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return stall_error_os(errno, "cannot search %s", dir);
	return add_dir(index, fd, dir, 0);
}

void stall_file_index_deinit(struct stall_file_index *index)
{
	for (size_t i = 0; i < index->count; i++) {
		free(index->files[i].build_id);
		free(index->files[i].path);
	}
	free(index->files);
	*index = (struct stall_file_index){};
}

// SPDX-License-Identifier: Apache-2.0
#include "snapshot/open_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "proc/path_status.h"

void stall_open_files_deinit(struct stall_open_files *files)
{
	free(files->modules);
	stall_hash_index_deinit(&files->by_number);
	*files = (struct stall_open_files){};
}

void stall_module_identify(struct stall_module *module)
{
	struct stall_path_status status;

	if (module->fd < 0 || !stall_fd_status(module->fd, &status))
		return;
	module->st_dev = status.dev;
	module->st_ino = status.ino;
}

static uint64_t hash_of(const struct stall_module *module)
{
	const uint64_t key[] = {module->dev, module->ino};

	return stall_hash(key, sizeof(key));
}

struct stall_error *stall_open_files_add(struct stall_open_files *files,
					 struct stall_module *module)
{
	if (module->shared)
		return NULL;
	if (!stall_array_reserve(&files->modules, files->count, 1, &files->capacity) ||
	    !stall_hash_index_add(&files->by_number, hash_of(module), (uint32_t)files->count))
		return &stall_enomem;
	files->modules[files->count++] = module;
	return NULL;
}

static bool is_same(const struct stall_module *known, const struct stall_module *module)
{
	// The vdso has neither device nor inode number.
	if (!known->ino)
		return !module->ino && known->start == module->start && known->end == module->end;
	if (known->dev != module->dev || known->ino != module->ino)
		return false;
	if (known->fd < 0)
		return module->fd < 0 && !strcmp(known->path, module->path);
	if (module->fd >= 0)
		return known->st_dev == module->st_dev && known->st_ino == module->st_ino;
	// Subvolumes of btrfs repeat device and inode number in maps. Such a file system shows other
	// devices by stat(2).
	return known->st_dev == known->dev;
}

struct stall_module *stall_open_files_find(const struct stall_open_files *files,
					   const struct stall_module *module)
{
	size_t at = 0;
	uint32_t found;

	while (files && (found = stall_hash_index_next(&files->by_number, hash_of(module), &at)) !=
				STALL_HASH_END)
		if (is_same(files->modules[found], module))
			return files->modules[found];
	return NULL;
}

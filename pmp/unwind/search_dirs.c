// SPDX-License-Identifier: Apache-2.0
#include "unwind/search_dirs.h"

#include <stdlib.h>
#include <string.h>

#include "base/trust.h"
#include "proc/path_open.h"

static struct stall_error *add_dir(struct stall_search_dirs *dirs, const char *path)
{
	int root;
	struct stall_error *err = stall_path_add_root(path, STALL_PATH_TRUSTED, &root);

	if (err && err != &stall_enomem) {
		if (stall_is_distrust(err) && !dirs->distrusted)
			dirs->distrusted = err;
		else
			stall_error_destroy(err);
		return NULL;
	}
	if (err)
		return err;
	if (dirs->count == STALL_MAX_SEARCH_DIRS + 1)
		return stall_error_create(STALL_ERROR_USAGE, "more than %d folders to search",
					  STALL_MAX_SEARCH_DIRS);
	char *copy = strdup(path);
	if (!copy)
		return &stall_enomem;
	dirs->dirs[dirs->count].root = root;
	dirs->dirs[dirs->count++].path = copy;
	return NULL;
}

struct stall_error *stall_search_dirs_init(struct stall_search_dirs *dirs, const char *const *paths,
					   size_t count, const char *system)
{
	struct stall_error *err = NULL;

	*dirs = (struct stall_search_dirs){};
	for (size_t i = 0; !err && i < count; i++)
		err = add_dir(dirs, paths[i]);
	if (!err)
		err = add_dir(dirs, system);
	if (err)
		stall_search_dirs_deinit(dirs);
	return err;
}

void stall_search_dirs_deinit(struct stall_search_dirs *dirs)
{
	for (size_t i = 0; i < dirs->count; i++)
		free(dirs->dirs[i].path);
	stall_error_destroy(dirs->distrusted);
	*dirs = (struct stall_search_dirs){};
}

struct stall_error *stall_search_dirs_distrust(const struct stall_search_dirs *dirs)
{
	const struct stall_error *known = dirs->distrusted;

	return known ? stall_error_create(known->code, "%s", known->message) : NULL;
}

struct stall_error *stall_search_dirs_open(const struct stall_search_dirs *dirs, size_t index,
					   const char *name, int *ret)
{
	const struct stall_path path = {.folder = dirs->dirs[index].root, .name = name};

	return stall_path_open(&path, STALL_PATH_READ | STALL_PATH_TRUSTED, ret, NULL);
}

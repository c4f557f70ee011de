// SPDX-License-Identifier: Apache-2.0
#include "unwind/pack_dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "unwind/debug_file.h"

#define SYSTEM_DIR "/usr/share/stallscope/packs"

static struct stall_error *add_dir(struct stall_pack_dirs *dirs, const char *path)
{
	size_t max = sizeof(dirs->dirs) / sizeof(dirs->dirs[0]);
	int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return NULL;
	char *copy = dirs->count < max ? strdup(path) : NULL;
	if (!copy) {
		close(fd);
		return dirs->count < max ? &stall_enomem
					 : stall_error_create(STALL_ERROR_USAGE,
							      "more than %d directories of packs",
							      STALL_MAX_PACK_DIRS);
	}
	dirs->dirs[dirs->count].fd = fd;
	dirs->dirs[dirs->count++].path = copy;
	return NULL;
}

struct stall_error *stall_pack_dirs_init(struct stall_pack_dirs *dirs, const char *const *paths,
					 size_t count)
{
	struct stall_pack_dirs made = {};
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < count; i++)
		err = add_dir(&made, paths[i]);
	if (!err)
		err = add_dir(&made, SYSTEM_DIR);
	if (err) {
		stall_pack_dirs_deinit(&made);
		return err;
	}
	*dirs = made;
	return NULL;
}

void stall_pack_dirs_deinit(struct stall_pack_dirs *dirs)
{
	for (size_t i = 0; i < dirs->count; i++) {
		close(dirs->dirs[i].fd);
		free(dirs->dirs[i].path);
	}
	dirs->count = 0;
}

struct stall_error *stall_pack_dirs_find(const struct stall_pack_dirs *dirs, const char *identity,
					 struct stall_pack **ret, char **ret_path)
{
	char name[STALL_IDENTITY_MAX + sizeof(STALL_PACK_SUFFIX)];
	_cleanup_error_ struct stall_error *first = NULL;

	if (!stall_identity_is_valid(identity))
		return NULL;
	snprintf(name, sizeof(name), "%s" STALL_PACK_SUFFIX, identity);
	for (size_t i = 0; i < dirs->count; i++) {
		_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
		int fd = stall_open_file_at(dirs->dirs[i].fd, name);
		struct stall_error *err = NULL;

		if (fd >= 0)
			err = stall_pack_open(fd, identity, &pack);
		else if (errno != ENOENT)
			err = stall_error_os(errno, "cannot open it");
		if (err && !first)
			first = stall_error_create(err->code, "%s/%s: %s", dirs->dirs[i].path, name,
						   err->message);
		stall_error_destroy(err);
		if (!pack)
			continue;
		if (asprintf(ret_path, "%s/%s", dirs->dirs[i].path, name) < 0)
			return &stall_enomem;
		*ret = no_cleanup_ptr(pack);
		return NULL;
	}
	return no_cleanup_ptr(first);
}

struct stall_error *stall_pack_dirs_find_for(const struct stall_pack_dirs *dirs,
					     const struct stall_elf *elf, struct stall_pack **ret,
					     char **ret_path)
{
	char identity[STALL_IDENTITY_MAX];

	// The identity of a file without a build-id costs reading it.
	if (!dirs->count || !stall_elf_identity(elf, identity))
		return NULL;
	return stall_pack_dirs_find(dirs, identity, ret, ret_path);
}

// SPDX-License-Identifier: Apache-2.0
#include "unwind/pack_dirs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/trust.h"

static struct stall_error *open_pack(const struct stall_search_dirs *dirs, size_t index,
				     const char *name, const char *identity,
				     struct stall_pack **ret)
{
	int fd;
	struct stall_error *err = stall_search_dirs_open(dirs, index, name, &fd);

	if (err && err->errnum == ENOENT) {
		stall_error_destroy(err);
		return NULL;
	}
	if (stall_is_distrust(err))
		return err;
	if (!err)
		err = stall_pack_open(fd, identity, ret);
	if (!err || err == &stall_enomem)
		return err;
	struct stall_error *named = stall_error_create(err->code, "%s/%s: %s",
						       dirs->dirs[index].path, name, err->message);
	stall_error_destroy(err);
	return named;
}

struct stall_error *stall_pack_dirs_find(const struct stall_search_dirs *dirs, const char *identity,
					 struct stall_pack **ret, char **ret_path)
{
	char name[STALL_IDENTITY_MAX + sizeof(STALL_PACK_SUFFIX)];
	_cleanup_error_ struct stall_error *first = NULL;

	if (!stall_identity_is_valid(identity))
		return NULL;
	snprintf(name, sizeof(name), "%s" STALL_PACK_SUFFIX, identity);
	for (size_t i = 0; i < dirs->count; i++) {
		_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
		struct stall_error *err = open_pack(dirs, i, name, identity, &pack);

		if (err == &stall_enomem)
			return err;
		if (err && !first)
			first = err;
		else
			stall_error_destroy(err);
		if (!pack)
			continue;
		if (asprintf(ret_path, "%s/%s", dirs->dirs[i].path, name) < 0)
			return &stall_enomem;
		*ret = no_cleanup_ptr(pack);
		return NULL;
	}
	if (!first)
		first = stall_search_dirs_distrust(dirs);
	return no_cleanup_ptr(first);
}

struct stall_error *stall_pack_dirs_find_for(const struct stall_search_dirs *dirs,
					     const struct stall_elf *elf, struct stall_pack **ret,
					     char **ret_path)
{
	char identity[STALL_IDENTITY_MAX];

	// The identity of a file without a build-id costs reading it.
	if ((!dirs->count && !dirs->distrusted) || !stall_elf_identity(elf, identity))
		return NULL;
	return stall_pack_dirs_find(dirs, identity, ret, ret_path);
}

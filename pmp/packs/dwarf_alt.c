// SPDX-License-Identifier: Apache-2.0
#include "packs/dwarf_alt.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "unwind/debug_file.h"
#include "unwind/elf_section.h"

// A path, NUL, the build-id.
#define MAX_LINK (PATH_MAX + STALL_BUILD_ID_MAX)

static bool has_build_id(const struct stall_elf *elf, const uint8_t *id, size_t size)
{
	return size && elf->build_id_size == size && memcmp(elf->build_id, id, size) == 0;
}

// Relative to the folder of the file that names it, without links: Debian's debug files are links
// in .build-id.
static bool find_path(const char *link, const char *path, char ret[PATH_MAX])
{
	char real[PATH_MAX];

	if (link[0] == '/')
		return snprintf(ret, PATH_MAX, "%s", link) < PATH_MAX;
	if (!realpath(path, real))
		return false;
	char *slash = strrchr(real, '/');
	if (slash)
		slash[1] = '\0';
	return snprintf(ret, PATH_MAX, "%s%s", real, link) < PATH_MAX;
}

static struct stall_error *open_link(const uint8_t *link, size_t size, const char *path,
				     struct stall_dwarf **ret)
{
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = NULL;
	size_t length = strnlen((const char *)link, size);
	char found[PATH_MAX];

	if (length == size || !find_path((const char *)link, path, found))
		return NULL;
	int fd = stall_open_file_at(AT_FDCWD, found);
	if (fd < 0)
		return NULL;
	struct stall_error *err = stall_elf_open(fd, &elf);
	if (err) {
		stall_error_destroy(err);
		return NULL;
	}
	if (!has_build_id(elf, link + length + 1, size - length - 1))
		return NULL;
	return stall_dwarf_open(elf, ret);
}

struct stall_error *stall_dwarf_alt_open(const struct stall_elf *elf, const char *path,
					 struct stall_dwarf **ret, bool *ret_missing)
{
	_cleanup_free_ uint8_t *link = NULL;
	struct stall_elf_place place;

	*ret = NULL;
	*ret_missing = false;
	if (!stall_elf_place_find(elf, ".gnu_debugaltlink", MAX_LINK, &place))
		return NULL;
	struct stall_error *err = stall_elf_place_load(elf, &place, MAX_LINK, &link);
	if (!err)
		err = open_link(link, place.size, path, ret);
	*ret_missing = !*ret;
	return err;
}

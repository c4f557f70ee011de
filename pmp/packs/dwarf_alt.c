// SPDX-License-Identifier: Apache-2.0
#include "packs/dwarf_alt.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/trust.h"
#include "proc/path_open.h"
#include "unwind/elf_section.h"

// A path, NUL, the build-id.
#define MAX_LINK (PATH_MAX + STALL_BUILD_ID_MAX)

static bool has_build_id(const struct stall_elf *elf, const uint8_t *id, size_t size)
{
	return size && elf->build_id_size == size && memcmp(elf->build_id, id, size) == 0;
}

// Relative to the folder of the file that names it, without links: Debian's debug files are links
// in .build-id.
static bool find_path(const char *link, const char *real, char ret[PATH_MAX])
{
	const char *slash = strrchr(real, '/');

	if (link[0] == '/')
		return snprintf(ret, PATH_MAX, "%s", link) < PATH_MAX;
	return slash &&
	       snprintf(ret, PATH_MAX, "%.*s/%s", (int)(slash - real), real, link) < PATH_MAX;
}

static struct stall_error *open_link(const uint8_t *link, size_t size, const char *path,
				     struct stall_dwarf **ret)
{
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = NULL;
	size_t length = strnlen((const char *)link, size);
	char found[PATH_MAX], real[PATH_MAX];
	const struct stall_path named = {.folder = AT_FDCWD, .name = path};
	const struct stall_path alt = {.folder = AT_FDCWD, .name = found};
	int fd;

	if (length == size)
		return NULL;
	struct stall_error *err = stall_path_real(&named, STALL_PATH_PUBLIC, real, sizeof(real));
	if (!err && !find_path((const char *)link, real, found))
		return NULL;
	if (!err)
		err = stall_path_open(&alt,
				      STALL_PATH_READ | STALL_PATH_TRUSTED | STALL_PATH_PUBLIC, &fd,
				      NULL);
	if (stall_is_distrust(err))
		return err;
	if (!err)
		err = stall_elf_open(fd, &elf);
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

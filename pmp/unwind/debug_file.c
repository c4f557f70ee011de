// SPDX-License-Identifier: Apache-2.0
#include "unwind/debug_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <lzma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/trust.h"
#include "proc/path_open.h"

#define MAX_COMPRESSED (32U << 20)
#define MAX_UNPACKED (256U << 20)
#define DECODER_MEMORY (128U << 20)

// Unpacks in growing steps, so that a small file that unpacks to gigabytes costs only the limit.
static struct stall_error *unpack(const uint8_t *packed, size_t size, uint8_t **ret,
				  size_t *ret_size)
{
	lzma_stream stream = LZMA_STREAM_INIT;
	_cleanup_free_ uint8_t *out = NULL;
	size_t capacity = 0;
	lzma_ret rc = lzma_stream_decoder(&stream, DECODER_MEMORY, 0);

	stream.next_in = packed;
	stream.avail_in = size;
	while (rc == LZMA_OK) {
		if (stream.total_out == capacity) {
			capacity = capacity ? capacity * 2 : 4 * size + 4096;
			if (capacity > MAX_UNPACKED || !stall_array_resize(&out, capacity)) {
				rc = LZMA_MEM_ERROR;
				break;
			}
		}
		stream.next_out = out + stream.total_out;
		stream.avail_out = capacity - stream.total_out;
		rc = lzma_code(&stream, LZMA_FINISH);
	}
	*ret_size = stream.total_out;
	lzma_end(&stream);
	if (rc != LZMA_STREAM_END)
		return stall_error_create(STALL_ERROR_FORMAT,
					  ".gnu_debugdata does not unpack (lzma error %d)", rc);
	*ret = no_cleanup_ptr(out);
	return NULL;
}

struct stall_error *stall_minidebug_open(const struct stall_elf *elf, struct stall_elf **ret)
{
	const Elf64_Shdr *section = stall_elf_section(elf, ".gnu_debugdata");
	_cleanup_free_ uint8_t *packed = NULL;
	uint8_t *image = NULL;
	size_t size = 0;

	if (!section || section->sh_type == SHT_NOBITS)
		return NULL;
	struct stall_error *err =
		stall_elf_load(elf, section->sh_offset, section->sh_size, MAX_COMPRESSED, &packed);
	if (!err)
		err = unpack(packed, section->sh_size, &image, &size);
	if (err)
		return err;
	return stall_elf_open_image(image, size, true, ret);
}

#define MAX_CRC_FILE (256U << 20) // an eighth of a second to check

static bool same_build_id(const struct stall_elf *a, const struct stall_elf *b)
{
	return a->build_id_size && a->build_id_size == b->build_id_size &&
	       memcmp(a->build_id, b->build_id, a->build_id_size) == 0;
}

// The sum in .gnu_debuglink.
static bool has_crc(const struct stall_elf *elf, uint32_t wanted)
{
	uint8_t buf[65536];
	uLong crc = 0;

	if (elf->size > MAX_CRC_FILE)
		return false;
	for (uint64_t at = 0; at < elf->size; at += sizeof(buf)) {
		size_t size = elf->size - at < sizeof(buf) ? (size_t)(elf->size - at) : sizeof(buf);
		struct stall_error *err = stall_elf_read(elf, at, buf, size);

		if (err) {
			stall_error_destroy(err);
			return false;
		}
		crc = crc32(crc, buf, (uInt)size);
	}
	return crc == wanted;
}

// A search for the debug file of a build.
struct search {
	const struct stall_search_dirs *dirs;
	struct stall_elf *elf; // found
	char *path;
	struct stall_error *distrust; // the first
};

static void search_deinit(struct search *search)
{
	stall_elf_destroy(search->elf);
	free(search->path);
	stall_error_destroy(search->distrust);
}

static bool is_there(const struct stall_path *path)
{
	_cleanup_close_ int fd = -1;
	_cleanup_error_ struct stall_error *err =
		stall_path_open(path, STALL_PATH_READ | STALL_PATH_PUBLIC, &fd, NULL);

	return !err;
}

// `dir`: one of the folders, or -1 for a path of its own, which any user may read.
static struct stall_elf *open_candidate(struct search *search, int dir, const char *name)
{
	const struct stall_path path = {.folder = AT_FDCWD, .name = name};
	const unsigned int how = STALL_PATH_READ | STALL_PATH_TRUSTED | STALL_PATH_PUBLIC;
	struct stall_elf *elf = NULL;
	int fd;
	struct stall_error *err =
		dir < 0 ? stall_path_open(&path, how, &fd, NULL)
			: stall_search_dirs_open(search->dirs, (size_t)dir, name, &fd);

	if (!err)
		err = stall_elf_open(fd, &elf);
	// The folder alone of a path says nothing.
	if (stall_is_distrust(err) && !search->distrust && (dir >= 0 || is_there(&path)))
		search->distrust = no_cleanup_ptr(err);
	stall_error_destroy(err);
	return elf;
}

static struct stall_error *end_search(struct search *search, struct stall_elf **ret,
				      char **ret_path)
{
	struct stall_error *err = NULL;

	if (!search->elf) {
		err = no_cleanup_ptr(search->distrust);
	} else if (!search->path) {
		err = &stall_enomem;
	} else {
		*ret = no_cleanup_ptr(search->elf);
		*ret_path = no_cleanup_ptr(search->path);
	}
	search_deinit(search);
	return err;
}

static void find_by_build_id(struct search *search, const char *build_id)
{
	const struct stall_search_dirs *dirs = search->dirs;
	char name[PATH_MAX], hex[2 * STALL_BUILD_ID_MAX + 1];

	if (strlen(build_id) < 3 || strlen(build_id) >= sizeof(hex))
		return;
	snprintf(name, sizeof(name), ".build-id/%.2s/%s.debug", build_id, build_id + 2);
	for (size_t i = 0; i < dirs->count; i++) {
		struct stall_elf *found = open_candidate(search, (int)i, name);

		if (!found)
			continue;
		stall_elf_build_id_text(found, hex);
		if (strcmp(hex, build_id) == 0) {
			search->elf = found;
			if (asprintf(&search->path, "%s/%s", dirs->dirs[i].path, name) < 0)
				search->path = NULL;
			return;
		}
		stall_elf_destroy(found);
	}
}

struct stall_error *stall_debug_dirs_find(const struct stall_search_dirs *dirs,
					  const char *build_id, struct stall_elf **ret,
					  char **ret_path)
{
	struct search search = {.dirs = dirs};

	find_by_build_id(&search, build_id);
	return end_search(&search, ret, ret_path);
}

struct link {
	char name[NAME_MAX + 1];
	uint32_t crc;
};

// The section: a file name, NUL, padding to four bytes, CRC. Hostile: a name with a slash could
// name any file.
static bool read_link(const struct stall_elf *elf, struct link *ret)
{
	const Elf64_Shdr *section = stall_elf_section(elf, ".gnu_debuglink");
	_cleanup_free_ uint8_t *data = NULL;

	if (!section || section->sh_type == SHT_NOBITS)
		return false;
	struct stall_error *err =
		stall_elf_load(elf, section->sh_offset, section->sh_size, PATH_MAX, &data);
	if (err) {
		stall_error_destroy(err);
		return false;
	}
	size_t length = strlen((char *)data), at = (length + 4) & ~(size_t)3;
	if (length == 0 || length > NAME_MAX || strchr((char *)data, '/') ||
	    strcmp((char *)data, "..") == 0 || at + 4 > section->sh_size)
		return false;
	memcpy(ret->name, data, length + 1);
	memcpy(&ret->crc, data + at, sizeof(ret->crc));
	return true;
}

static bool belongs(const struct stall_elf *elf, const struct stall_elf *found, uint32_t crc)
{
	// With a build-id on both sides the (slow) sum adds nothing.
	if (elf->build_id_size && found->build_id_size)
		return same_build_id(elf, found);
	return has_crc(found, crc);
}

static bool offer_link(struct search *search, const struct stall_elf *elf, int dir,
		       const char *name, const struct link *link)
{
	struct stall_elf *found = open_candidate(search, dir, name);

	if (!found || !belongs(elf, found, link->crc)) {
		stall_elf_destroy(found);
		return false;
	}
	search->elf = found;
	if (asprintf(&search->path, "%s%s%s", dir < 0 ? "" : search->dirs->dirs[dir].path,
		     dir < 0 ? "" : "/", name) < 0)
		search->path = NULL;
	return true;
}

static void find_by_link(struct search *search, const struct stall_elf *elf, const char *path)
{
	const char *slash = strrchr(path, '/');
	char name[2 * PATH_MAX];
	struct link link;

	if (path[0] != '/' || !slash || slash - path >= PATH_MAX || strstr(path, "/../") ||
	    !read_link(elf, &link))
		return;
	int folder = (int)(slash - path) - 1; // without the first slash
	for (size_t i = 0; i < search->dirs->count; i++) {
		if (folder > 0)
			snprintf(name, sizeof(name), "%.*s/%s", folder, path + 1, link.name);
		else
			snprintf(name, sizeof(name), "%s", link.name);
		if (offer_link(search, elf, (int)i, name, &link))
			return;
	}
	snprintf(name, sizeof(name), "%.*s/.debug/%s", folder + 1, path, link.name);
	offer_link(search, elf, -1, name, &link);
}

struct stall_error *stall_debug_file_open(const struct stall_search_dirs *dirs,
					  const struct stall_elf *elf, const char *path,
					  struct stall_elf **ret, char **ret_path)
{
	char build_id[2 * STALL_BUILD_ID_MAX + 1];
	struct search search = {.dirs = dirs};

	stall_elf_build_id_text(elf, build_id);
	find_by_build_id(&search, build_id);
	if (!search.elf && path)
		find_by_link(&search, elf, path);
	if (!search.elf && !search.distrust)
		search.distrust = stall_search_dirs_distrust(dirs);
	return end_search(&search, ret, ret_path);
}

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

#include "base/cleanup.h"

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
			uint8_t *grown = capacity > MAX_UNPACKED ? NULL : realloc(out, capacity);

			if (!grown) {
				rc = LZMA_MEM_ERROR;
				break;
			}
			out = grown;
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

#define SYSTEM_DIR "/usr/lib/debug"
#define MAX_CRC_FILE (256U << 20) // an eighth of a second to check

int stall_open_file_at(int dir, const char *name)
{
	struct stat st;
	// O_NONBLOCK: a FIFO must not block us.
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
		close(fd);
		errno = EINVAL;
		return -1;
	}
	return fd;
}

static struct stall_error *add_dir(struct stall_debug_dirs *dirs, const char *path)
{
	size_t max = sizeof(dirs->dirs) / sizeof(dirs->dirs[0]);
	int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return NULL;
	char *copy = dirs->count < max ? strdup(path) : NULL;
	if (!copy) {
		close(fd);
		return dirs->count < max
			       ? &stall_enomem
			       : stall_error_create(STALL_ERROR_USAGE,
						    "more than %zu debug directories", max - 1);
	}
	dirs->dirs[dirs->count].fd = fd;
	dirs->dirs[dirs->count++].path = copy;
	return NULL;
}

struct stall_error *stall_debug_dirs_init(struct stall_debug_dirs *dirs, const char *const *paths,
					  size_t count)
{
	struct stall_debug_dirs made = {};
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < count; i++)
		err = add_dir(&made, paths[i]);
	if (!err)
		err = add_dir(&made, SYSTEM_DIR);
	if (err) {
		stall_debug_dirs_deinit(&made);
		return err;
	}
	*dirs = made;
	return NULL;
}

void stall_debug_dirs_deinit(struct stall_debug_dirs *dirs)
{
	for (size_t i = 0; i < dirs->count; i++) {
		close(dirs->dirs[i].fd);
		free(dirs->dirs[i].path);
	}
	dirs->count = 0;
}

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

static struct stall_elf *open_candidate(int dir, const char *name)
{
	struct stall_elf *elf = NULL;
	int fd = stall_open_file_at(dir, name);

	if (fd >= 0)
		stall_error_destroy(stall_elf_open(fd, &elf));
	return elf;
}

struct stall_elf *stall_debug_dirs_find(const struct stall_debug_dirs *dirs, const char *build_id,
					char **ret_path)
{
	char name[PATH_MAX], hex[2 * STALL_BUILD_ID_MAX + 1];

	if (strlen(build_id) < 3 || strlen(build_id) >= sizeof(hex))
		return NULL;
	snprintf(name, sizeof(name), ".build-id/%.2s/%s.debug", build_id, build_id + 2);
	for (size_t i = 0; i < dirs->count; i++) {
		struct stall_elf *found = open_candidate(dirs->dirs[i].fd, name);

		if (!found)
			continue;
		stall_elf_build_id_text(found, hex);
		if (strcmp(hex, build_id) == 0 &&
		    asprintf(ret_path, "%s/%s", dirs->dirs[i].path, name) >= 0)
			return found;
		stall_elf_destroy(found);
	}
	return NULL;
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

static struct stall_elf *find_by_link(const struct stall_debug_dirs *dirs,
				      const struct stall_elf *elf, const char *path,
				      char **ret_path)
{
	const char *slash = strrchr(path, '/');
	char name[2 * PATH_MAX];
	struct link link;

	if (path[0] != '/' || !slash || slash - path >= PATH_MAX || strstr(path, "/../") ||
	    !read_link(elf, &link))
		return NULL;
	int folder = (int)(slash - path) - 1; // without the first slash
	for (size_t i = 0; i < dirs->count; i++) {
		if (folder > 0)
			snprintf(name, sizeof(name), "%.*s/%s", folder, path + 1, link.name);
		else
			snprintf(name, sizeof(name), "%s", link.name);
		struct stall_elf *found = open_candidate(dirs->dirs[i].fd, name);
		if (found && belongs(elf, found, link.crc)) {
			if (asprintf(ret_path, "%s/%s", dirs->dirs[i].path, name) < 0)
				*ret_path = NULL;
			return found;
		}
		stall_elf_destroy(found);
	}
	snprintf(name, sizeof(name), "%.*s/.debug/%s", folder + 1, path, link.name);
	struct stall_elf *found = open_candidate(AT_FDCWD, name);
	if (found && belongs(elf, found, link.crc)) {
		*ret_path = strdup(name);
		return found;
	}
	stall_elf_destroy(found);
	return NULL;
}

struct stall_error *stall_debug_file_open(const struct stall_debug_dirs *dirs,
					  const struct stall_elf *elf, const char *path,
					  struct stall_elf **ret, char **ret_path)
{
	char *found_path = NULL, build_id[2 * STALL_BUILD_ID_MAX + 1];

	stall_elf_build_id_text(elf, build_id);
	struct stall_elf *found = stall_debug_dirs_find(dirs, build_id, &found_path);

	if (!found && path)
		found = find_by_link(dirs, elf, path, &found_path);
	if (!found)
		return NULL;
	if (!found_path) {
		stall_elf_destroy(found);
		return &stall_enomem;
	}
	*ret = found;
	*ret_path = found_path;
	return NULL;
}

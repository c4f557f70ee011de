// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_files.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "proc/descriptors.h"
#include "proc/paths.h"
#include "proc/proc_file.h"

#define MAX_DESCRIPTORS 65536
#define KERNEL_MINOR_BITS 20 // include/linux/kdev_t.h

bool stall_wait_file_is(const struct stall_wait_key *key, uint64_t st_dev, uint64_t st_ino)
{
	uint64_t dev = (uint64_t)major(st_dev) << KERNEL_MINOR_BITS | minor(st_dev);

	return key->id == st_ino && key->id2 >> 32 == dev;
}

static struct stall_error *copy(const char *text, char **ret)
{
	char *path = strdup(text);

	if (!path)
		return &stall_enomem;
	*ret = path;
	return NULL;
}

// Whether the last name is the one that the kernel saw, which is cut where it is long. Overlay
// filesystems show other device and inode numbers to stat(2) than their files have.
static bool has_name(const char *path, const struct stall_wait_file *file)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t length = strnlen(file->names[0], STALL_FILE_NAME);

	if (!file->name_count || !length)
		return false;
	if (length < STALL_FILE_NAME - 1)
		return strlen(name) == length && !memcmp(name, file->names[0], length);
	return !strncmp(name, file->names[0], length);
}

static bool is_file(const struct stall_wait_file *file, const struct stall_descriptor *descriptor)
{
	return stall_wait_file_is(&file->key, descriptor->status.dev, descriptor->status.ino) ||
	       has_name(descriptor->path, file);
}

static bool path_of_descriptor(const struct stall_target *target,
			       const struct stall_wait_file *file, char *ret, size_t size,
			       bool *ret_deleted)
{
	struct stall_descriptor descriptor;

	if (file->fd < 0 || !stall_descriptor_read(target, file->fd, &descriptor, ret, size))
		return false;
	*ret_deleted = descriptor.deleted;
	return is_file(file, &descriptor);
}

struct stall_error *stall_wait_file_absolute(const char *cwd, const char *path, char **ret)
{
	char *joined;

	// ".../": its beginning is lost.
	if (path[0] == '/' || !cwd[0] || !strncmp(path, ".../", 4))
		return copy(path, ret);
	while (!strncmp(path, "./", 2))
		path += 2;
	if (asprintf(&joined, "%s%s%s", cwd, !strcmp(cwd, "/") ? "" : "/", path) < 0)
		return &stall_enomem;
	*ret = joined;
	return NULL;
}

struct stall_error *stall_wait_file_join(const struct stall_wait_file *file, char **ret)
{
	char path[STALL_FILE_NAMES * (STALL_FILE_NAME + 1) + 8];
	size_t count = file->name_count < STALL_FILE_NAMES ? file->name_count : STALL_FILE_NAMES;
	// The names end at the mount, or where there was room for no more.
	size_t length = snprintf(path, sizeof(path), "...");

	for (size_t i = count; i > 0; i--)
		length += snprintf(path + length, sizeof(path) - length, "/%.*s",
				   STALL_FILE_NAME - 1, file->names[i - 1]);
	return copy(path, ret);
}

struct stall_error *stall_wait_file_path(const struct stall_target *target,
					 const struct stall_wait_file *file, char **ret,
					 bool *ret_deleted)
{
	char path[PATH_MAX + 16], cwd[PATH_MAX] = "", given[STALL_PATH + 1];
	bool deleted = false;
	struct stall_error *err;

	if (path_of_descriptor(target, file, path, sizeof(path), &deleted)) {
		err = copy(path, ret);
	} else if (file->path[0]) {
		memcpy(given, file->path, STALL_PATH);
		given[STALL_PATH] = '\0';
		// The path of a record with an inode number was not an argument: it was searched
		// for.
		deleted = file->key.id2 && stall_path_cut_deleted(given);
		stall_proc_link_inside(target, "cwd", cwd, sizeof(cwd));
		err = stall_wait_file_absolute(cwd, given, ret);
	} else {
		err = stall_wait_file_join(file, ret);
	}
	if (!err)
		*ret_deleted = deleted;
	return err;
}

struct search {
	struct stall_wait_file file;
	struct stall_error *err;
	char *path;
	bool deleted;
};

static bool try_descriptor(void *arg, const struct stall_descriptor *descriptor)
{
	struct search *search = arg;

	if (!is_file(&search->file, descriptor))
		return true;
	search->deleted = descriptor->deleted;
	search->err = copy(descriptor->path, &search->path);
	return false;
}

struct stall_error *stall_wait_file_search(const struct stall_target *target,
					   const struct stall_wait_key *key, char **ret,
					   bool *ret_deleted)
{
	struct search search = {.file = {.key = *key}};
	size_t lost;
	struct stall_error *err =
		stall_descriptors_visit(target, MAX_DESCRIPTORS, try_descriptor, &search, &lost);

	*ret = search.path;
	*ret_deleted = search.deleted;
	if (err && err != &stall_enomem) { // without rights, or it has ended
		stall_error_destroy(err);
		err = NULL;
	}
	return err ? err : search.err;
}

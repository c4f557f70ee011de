// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"

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

// Link of /proc/PID, as the target sees it. False: there is none (any more).
static bool read_link(const struct stall_target *target, const char *link, char *ret, size_t size)
{
	char path[PATH_MAX], root[PATH_MAX];
	ssize_t length = readlinkat(target->procfd, link, path, sizeof(path) - 1);

	if (length <= 0)
		return false;
	path[length] = '\0';
	stall_target_root(target, root, sizeof(root));
	snprintf(ret, size, "%s", stall_path_in_root(path, root));
	return true;
}

static bool cut_deleted(char *path)
{
	static const char suffix[] = " (deleted)";
	size_t length = strlen(path), cut = sizeof(suffix) - 1;

	if (length <= cut || strcmp(path + length - cut, suffix) != 0)
		return false;
	path[length - cut] = '\0';
	return true;
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

static bool path_of_descriptor(const struct stall_target *target,
			       const struct stall_wait_file *file, char *ret, size_t size,
			       bool *ret_deleted)
{
	char link[32];
	struct stat status;

	if (file->fd < 0)
		return false;
	snprintf(link, sizeof(link), "fd/%d", file->fd);
	if (!read_link(target, link, ret, size) || fstatat(target->procfd, link, &status, 0) < 0)
		return false;
	*ret_deleted = status.st_nlink == 0 && cut_deleted(ret);
	return stall_wait_file_is(&file->key, status.st_dev, status.st_ino) || has_name(ret, file);
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
		// What has an inode number was not given: the process has looked for its path.
		deleted = file->key.id2 && cut_deleted(given);
		read_link(target, "cwd", cwd, sizeof(cwd));
		err = stall_wait_file_absolute(cwd, given, ret);
	} else {
		err = stall_wait_file_join(file, ret);
	}
	if (!err)
		*ret_deleted = deleted;
	return err;
}

static void closedirp(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

struct stall_error *stall_wait_file_search(const struct stall_target *target,
					   const struct stall_wait_key *key, char **ret,
					   bool *ret_deleted)
{
	struct stall_wait_file file = {.key = *key};
	char path[PATH_MAX + 16];
	size_t seen = 0;

	*ret = NULL;
	int fd = openat(target->procfd, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	_cleanup_(closedirp) DIR *dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return &stall_enomem;
	}
	for (struct dirent *entry; (entry = readdir(dir)) && seen < MAX_DESCRIPTORS; seen++) {
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		file.fd = atoi(entry->d_name);
		if (path_of_descriptor(target, &file, path, sizeof(path), ret_deleted))
			return copy(path, ret);
	}
	return NULL;
}

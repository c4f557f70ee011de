// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "snapshot/module_file.h"
#include "waits/wait_files.h"

#define MAX_DEPTH 8
#define MAX_FOLDERS 20000
#define MAX_ENTRIES 1000000 // of one folder

// Each folder once, by its path: what leads to the same by another name costs time, and adds no file
// twice.
static struct stall_error *add_folder(struct stall_cache_scan *scan, const char *path, bool flat,
				      unsigned int depth, size_t target)
{
	for (size_t i = 0; i < scan->folder_count; i++) {
		struct stall_cache_folder *known = &scan->folders[i];
		if (known->target == target && !strcmp(known->path, path)) {
			known->flat = known->flat && flat;
			return NULL;
		}
	}
	if (scan->folder_count == MAX_FOLDERS || depth > MAX_DEPTH) {
		scan->limit_reached = true;
		return NULL;
	}
	if (scan->folder_count == scan->folder_capacity) {
		size_t capacity = scan->folder_capacity ? scan->folder_capacity * 2 : 32;
		struct stall_cache_folder *folders =
			reallocarray(scan->folders, capacity, sizeof(*folders));
		if (!folders)
			return &stall_enomem;
		scan->folders = folders;
		scan->folder_capacity = capacity;
	}
	char *copy = strdup(path);
	if (!copy)
		return &stall_enomem;
	scan->folders[scan->folder_count++] = (struct stall_cache_folder){
		.path = copy,
		.flat = flat,
		.depth = depth,
		.target = target,
	};
	return NULL;
}

// The path that an O_PATH descriptor of ours leads to, as the process sees it.
static bool path_behind(const struct stall_target *target, int fd, char *ret, size_t size)
{
	char link[32];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return stall_wait_file_link(target, link, ret, size);
}

static uid_t user_of(const struct stall_target *target)
{
	struct stat st;

	return fstatat(target->procfd, "task", &st, 0) == 0 ? st.st_uid : (uid_t)-1;
}

// In a folder that others use too, files without a class of ours are not the server's.
static bool belongs(const struct stall_cache_scan *scan, const struct stall_cache_folder *folder,
		    const char *path, const struct stat *st)
{
	if (!folder->flat)
		return true;
	enum stall_file_class class = stall_file_class(path, false);
	if (class == STALL_FILE_TEMPORARY)
		return st->st_uid == user_of(&scan->targets[folder->target]);
	return class != STALL_FILE_OTHER;
}

static struct stall_error *take(struct stall_cache_scan *scan, size_t index, int fd,
				const char *path)
{
	// Not a pointer: folders move when one is added.
	struct stall_cache_folder folder = scan->folders[index];
	struct stall_cache_file *file;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return NULL;
	if (S_ISDIR(st.st_mode))
		return folder.flat ? NULL
				   : add_folder(scan, path, false, folder.depth + 1, folder.target);
	if (!S_ISREG(st.st_mode)) {
		scan->special++;
		return NULL;
	}
	if (!belongs(scan, &folder, path, &st))
		return NULL;
	return stall_cache_add_path(scan, fd, &st, path, false, folder.target, &file);
}

// A link is followed within the server's own root alone.
static struct stall_error *take_link(struct stall_cache_scan *scan, size_t index, const char *path)
{
	const struct stall_target *target = &scan->targets[scan->folders[index].target];
	char real[PATH_MAX + 16];
	_cleanup_close_ int fd = stall_open_in_root(target, path);

	if (fd < 0 || !path_behind(target, fd, real, sizeof(real)))
		return NULL; // it leads nowhere
	return take(scan, index, fd, real);
}

static struct stall_error *take_entry(struct stall_cache_scan *scan, size_t index, int dirfd,
				      const struct dirent *entry)
{
	char path[PATH_MAX];
	const char *folder = scan->folders[index].path;

	if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
		return NULL;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", strcmp(folder, "/") ? folder : "",
			     entry->d_name) >= sizeof(path)) {
		scan->long_paths++;
		return NULL;
	}
	if (entry->d_type == DT_LNK)
		return take_link(scan, index, path);
	_cleanup_close_ int fd = openat(dirfd, entry->d_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return NULL; // removed meanwhile
	if (entry->d_type == DT_UNKNOWN) {
		struct stat st;
		if (fstat(fd, &st) == 0 && S_ISLNK(st.st_mode))
			return take_link(scan, index, path);
	}
	return take(scan, index, fd, path);
}

static struct stall_error *unreadable(struct stall_cache_scan *scan, const char *path)
{
	if (errno == ENOENT)
		return NULL;
	scan->unreadable++;
	return stall_cache_note(scan, "cannot read the folder %s: %s", path, strerror(errno));
}

// By another name, or for another process of the server.
static bool was_scanned(struct stall_cache_scan *scan, size_t index, int fd)
{
	struct stall_cache_folder *folder = &scan->folders[index];
	struct stat st;

	if (fstat(fd, &st) < 0)
		return false;
	folder->dev = st.st_dev;
	folder->ino = st.st_ino;
	for (size_t i = 0; i < index; i++)
		if (scan->folders[i].ino == folder->ino && scan->folders[i].dev == folder->dev &&
		    (!scan->folders[i].flat || folder->flat))
			return true;
	return false;
}

static struct stall_error *scan_folder(struct stall_cache_scan *scan, size_t index)
{
	const char *path = scan->folders[index].path;
	struct stall_error *err = NULL;
	char link[32];
	size_t seen = 0;
	_cleanup_close_ int path_fd =
		stall_open_in_root(&scan->targets[scan->folders[index].target], path);

	if (path_fd < 0)
		return unreadable(scan, path);
	if (was_scanned(scan, index, path_fd))
		return NULL;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", path_fd);
	int fd = open(link, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOATIME);
	if (fd < 0 && errno == EPERM)
		fd = open(link, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return unreadable(scan, path);
	_cleanup_closedir_ DIR *dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return &stall_enomem;
	}
	for (struct dirent *entry; !err && (entry = readdir(dir));) {
		if (seen++ == MAX_ENTRIES)
			scan->limit_reached = true;
		if (scan->limit_reached || stall_cache_is_late(scan))
			break;
		err = take_entry(scan, index, dirfd(dir), entry);
	}
	return err;
}

static bool is_below(const char *path, const char *folder)
{
	size_t length = strlen(folder);

	return length > 1 && !strncmp(path, folder, length) && path[length] == '/';
}

static bool is_of_database(const struct stall_cache_file *file)
{
	return !file->deleted && file->class != STALL_FILE_OTHER &&
	       file->class != STALL_FILE_TEMPORARY;
}

// A database server works in its data directory. What it has open elsewhere has neighbours there.
static struct stall_error *add_folders_of_files(struct stall_cache_scan *scan, size_t target)
{
	char cwd[PATH_MAX] = "", root[PATH_MAX], parent[PATH_MAX];
	struct stall_error *err = NULL;
	ssize_t length = readlinkat(scan->targets[target].procfd, "cwd", cwd, sizeof(cwd) - 1);

	cwd[length > 0 ? length : 0] = '\0';
	stall_target_root(&scan->targets[target], root, sizeof(root));
	const char *here = stall_path_in_root(cwd, root);
	for (size_t i = 0; !err && i < scan->count; i++) {
		const struct stall_cache_file *file = &scan->files[i];
		if (file->target != target || !is_of_database(file))
			continue;
		if (is_below(file->path, here)) {
			err = add_folder(scan, here, false, 0, target);
			continue;
		}
		snprintf(parent, sizeof(parent), "%s", file->path);
		char *slash = strrchr(parent, '/');
		if (!slash)
			continue;
		*(slash == parent ? slash + 1 : slash) = '\0';
		err = add_folder(scan, parent, true, 0, target);
	}
	return err;
}

// A given folder may be a link.
static struct stall_error *add_given(struct stall_cache_scan *scan, const char *path, bool flat)
{
	char real[PATH_MAX + 16];
	_cleanup_close_ int fd = stall_open_in_root(&scan->targets[0], path);

	if (fd < 0)
		return unreadable(scan, path);
	if (!path_behind(&scan->targets[0], fd, real, sizeof(real)))
		return NULL;
	return add_folder(scan, real, flat, 0, 0);
}

struct stall_error *stall_cache_scan_folders(struct stall_cache_scan *scan)
{
	const struct stall_cache_options *options = scan->options;
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < options->data_dir_count; i++)
		err = add_given(scan, options->data_dirs[i], false);
	for (size_t i = 0; !err && i < options->log_dir_count; i++)
		err = add_given(scan, options->log_dirs[i], true);
	for (size_t i = 0; !err && i < scan->target_count; i++)
		err = add_folders_of_files(scan, i);
	// Folders below are added at the end.
	for (size_t i = 0; !err && i < scan->folder_count; i++) {
		if (scan->limit_reached || stall_cache_is_late(scan))
			break;
		err = scan_folder(scan, i);
	}
	return err;
}

void stall_cache_folders_deinit(struct stall_cache_scan *scan)
{
	for (size_t i = 0; i < scan->folder_count; i++)
		free(scan->folders[i].path);
	free(scan->folders);
}

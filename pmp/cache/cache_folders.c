// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_folders.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/file_class.h"
#include "base/hash_index.h"
#include "proc/path_open.h"
#include "proc/paths.h"
#include "proc/proc_file.h"
#include "waits/wait_files.h"

#define MAX_DEPTH 8
#define MAX_FOLDERS 20000
#define MAX_ENTRIES 1000000 // of one folder
#define PIECE ((size_t)256 << 10)

static uint64_t hash_of(const char *path, size_t target)
{
	return stall_hash(path, strlen(path)) + target;
}

static struct stall_cache_folder *find_folder(struct stall_cache_scan *scan, const char *path,
					      size_t target)
{
	size_t at = 0;
	uint32_t found;

	while ((found = stall_hash_index_next(&scan->folders_by_path, hash_of(path, target),
					      &at)) != STALL_HASH_END)
		if (scan->folders[found].target == target &&
		    !strcmp(scan->folders[found].path, path))
			return &scan->folders[found];
	return NULL;
}

// Each folder once, by its path: what leads to the same by another name costs time, and adds no file
// twice.
static struct stall_error *add_folder(struct stall_cache_scan *scan, const char *path, bool flat,
				      unsigned int depth, size_t target)
{
	struct stall_cache_folder *known = find_folder(scan, path, target);

	if (known) {
		known->flat = known->flat && flat;
		return NULL;
	}
	if (scan->folder_count == MAX_FOLDERS || depth > MAX_DEPTH) {
		scan->limit_reached = true;
		return NULL;
	}
	if (!stall_array_reserve(&scan->folders, scan->folder_count, 1, &scan->folder_capacity))
		return &stall_enomem;
	char *copy = strdup(path);
	if (!copy || !stall_hash_index_add(&scan->folders_by_path, hash_of(path, target),
					   scan->folder_count)) {
		free(copy);
		return &stall_enomem;
	}
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
	char link[32], path[PATH_MAX + 16], root[PATH_MAX];

	snprintf(link, sizeof(link), "fd/%d", fd);
	if (!stall_proc_link(NULL, link, path, sizeof(path)))
		return false;
	stall_proc_root(target, root, sizeof(root));
	snprintf(ret, size, "%s", stall_path_in_root(path, root));
	return true;
}

static uid_t user_of(const struct stall_target *target)
{
	const struct stall_path path = {target, STALL_PATH_IN_PROC, "task", 0};
	struct stall_path_status status;
	_cleanup_error_ struct stall_error *err = stall_path_status(&path, 0, &status);

	return err ? (uid_t)-1 : status.uid;
}

// In a folder that others use too, files without a class of ours are not the server's.
static bool belongs(const struct stall_cache_scan *scan, const struct stall_cache_folder *folder,
		    const char *path, const struct stall_path_status *status)
{
	if (!folder->flat)
		return true;
	enum stall_file_class class = stall_file_class(path, false);
	if (class == STALL_FILE_TEMPORARY)
		return status->uid == user_of(&scan->targets[folder->target]);
	return class != STALL_FILE_OTHER;
}

static struct stall_error *unreadable(struct stall_cache_scan *scan, const char *path,
				      const struct stall_error *why)
{
	if (why->errnum == ENOENT)
		return NULL;
	scan->unreadable++;
	return stall_cache_note(scan, "cannot read %s: %s", path,
				why->errnum ? strerror(why->errnum) : why->message);
}

static struct stall_error *take(struct stall_cache_scan *scan, size_t index,
				const struct stall_path *where,
				const struct stall_path_status *status, const char *path)
{
	// Not a pointer: folders move when one is added.
	struct stall_cache_folder folder = scan->folders[index];
	struct stall_cache_file *file;

	if (S_ISDIR(status->mode))
		return folder.flat ? NULL
				   : add_folder(scan, path, false, folder.depth + 1, folder.target);
	if (!S_ISREG(status->mode)) {
		scan->special++;
		return NULL;
	}
	if (!belongs(scan, &folder, path, status))
		return NULL;
	return stall_cache_add_path(scan, where, status, path, false, folder.target, &file);
}

// A link is followed within the server's own root alone.
static struct stall_error *take_link(struct stall_cache_scan *scan, size_t index, const char *path)
{
	const struct stall_target *target = &scan->targets[scan->folders[index].target];
	struct stall_path where = {target, STALL_PATH_IN_ROOT, path, 0};
	struct stall_path_status status;
	char real[PATH_MAX + 16];
	_cleanup_close_ int fd = -1;
	_cleanup_error_ struct stall_error *err =
		stall_path_open(&where, STALL_PATH_STATUS, &fd, &status);

	if (err || !path_behind(target, fd, real, sizeof(real)))
		return NULL; // it leads nowhere
	return take(scan, index, &where, &status, real);
}

static struct stall_error *take_entry(struct stall_cache_scan *scan, size_t index, int dirfd,
				      const struct stall_folder_entry *entry)
{
	char path[PATH_MAX];
	const char *folder = scan->folders[index].path;
	const struct stall_path where = {.folder = dirfd, .name = entry->name};
	struct stall_path_status status;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", strcmp(folder, "/") ? folder : "",
			     entry->name) >= sizeof(path)) {
		scan->long_paths++;
		return NULL;
	}
	if (entry->type == DT_LNK)
		return take_link(scan, index, path);
	_cleanup_error_ struct stall_error *err =
		stall_path_status(&where, STALL_PATH_NOFOLLOW, &status);
	if (err && err->code == STALL_ERROR_LATE)
		return unreadable(scan, path, err);
	if (err)
		return NULL; // removed meanwhile
	if (S_ISLNK(status.mode))
		return take_link(scan, index, path);
	return take(scan, index, &where, &status, path);
}

static uint64_t identity_hash(const struct stall_cache_folder *folder)
{
	const uint64_t key[] = {folder->dev, folder->ino};

	return stall_hash(key, sizeof(key));
}

// *ret: whether it was scanned by another name, or for another process of the server.
static struct stall_error *begin_scan(struct stall_cache_scan *scan, size_t index,
				      const struct stall_path_status *status, bool *ret)
{
	struct stall_cache_folder *folder = &scan->folders[index];
	size_t at = 0;
	uint32_t found;

	folder->dev = status->dev;
	folder->ino = status->ino;
	uint64_t hash = identity_hash(folder);
	while ((found = stall_hash_index_next(&scan->scanned_folders, hash, &at)) !=
	       STALL_HASH_END) {
		const struct stall_cache_folder *other = &scan->folders[found];

		*ret = other->ino == folder->ino && other->dev == folder->dev &&
		       (!other->flat || folder->flat);
		if (*ret)
			return NULL;
	}
	*ret = false;
	return stall_hash_index_add(&scan->scanned_folders, hash, (uint32_t)index) ? NULL
										   : &stall_enomem;
}

// Returns how many entries it had in *ret; 0 at the end.
static struct stall_error *scan_piece(struct stall_cache_scan *scan, size_t index, int folder,
				      void *piece, size_t *ret)
{
	struct stall_folder_entry entry;
	size_t size, at = 0;
	struct stall_error *err = stall_folder_next(folder, piece, PIECE, &size);

	*ret = 0;
	if (err) {
		struct stall_error *noted = unreadable(scan, scan->folders[index].path, err);

		stall_error_destroy(err);
		return noted;
	}
	while (!err && stall_folder_entry_next(piece, size, &at, &entry)) {
		++*ret;
		if (scan->limit_reached || stall_cache_is_late(scan))
			break;
		err = take_entry(scan, index, folder, &entry);
	}
	if (!*ret && size) // "." and ".." alone
		*ret = 1;
	return err;
}

static struct stall_error *scan_folder(struct stall_cache_scan *scan, size_t index)
{
	const struct stall_path where = {&scan->targets[scan->folders[index].target],
					 STALL_PATH_IN_ROOT, scan->folders[index].path, 0};
	_cleanup_free_ char *piece = malloc(PIECE);
	_cleanup_close_ int fd = -1;
	struct stall_path_status status;
	size_t seen = 0, count = 1;
	bool was_scanned;
	struct stall_error *err =
		stall_path_open(&where, STALL_PATH_FOLDER | STALL_PATH_QUIET, &fd, &status);

	if (err) {
		struct stall_error *noted = unreadable(scan, where.name, err);

		stall_error_destroy(err);
		return noted;
	}
	if (!piece)
		return &stall_enomem;
	err = begin_scan(scan, index, &status, &was_scanned);
	if (err || was_scanned)
		return err;
	while (!err && count && !scan->limit_reached && !stall_cache_is_late(scan)) {
		err = scan_piece(scan, index, fd, piece, &count);
		seen += count;
		if (seen >= MAX_ENTRIES)
			scan->limit_reached = true;
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
	char here[PATH_MAX] = "", parent[PATH_MAX];
	struct stall_error *err = NULL;

	stall_proc_link_inside(&scan->targets[target], "cwd", here, sizeof(here));
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
	const struct stall_path where = {&scan->targets[0], STALL_PATH_IN_ROOT, path, 0};
	char real[PATH_MAX + 16];
	_cleanup_close_ int fd = -1;
	_cleanup_error_ struct stall_error *err =
		stall_path_open(&where, STALL_PATH_STATUS, &fd, NULL);

	if (err)
		return unreadable(scan, path, err);
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
	stall_hash_index_deinit(&scan->folders_by_path);
	stall_hash_index_deinit(&scan->scanned_folders);
}

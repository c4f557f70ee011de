// SPDX-License-Identifier: Apache-2.0
#include "storage/storage_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "snapshot/blocked_files.h"
#include "waits/wait_files.h"

#define MAX_DESCRIPTORS 65536
#define MAX_MAP_LINES 262144
#define MAX_SEARCHES 3 // of a file that is never found
#define SURE 100       // the same device and number
#define SAME_NUMBER 50 // of a file system that shows another device (btrfs)

struct seen {
	char path[PATH_MAX + 16]; // as the target sees it
	uint64_t dev, ino;
	bool unlinked;
	int fd; // -1: mapped
};

struct stall_error *stall_storage_files_init(struct stall_storage_files *files, size_t count)
{
	files->files = calloc(count, sizeof(*files->files));
	if (!files->files)
		return &stall_enomem;
	files->count = count;
	for (size_t i = 0; i < count; i++)
		files->files[i].fd = -1;
	return NULL;
}

void stall_storage_files_deinit(struct stall_storage_files *files)
{
	for (size_t i = 0; i < files->count; i++) {
		free(files->files[i].record);
		free(files->files[i].path);
	}
	free(files->files);
	*files = (struct stall_storage_files){};
}

static struct stall_error *set_path(struct stall_storage_file *file, const char *path)
{
	if (file->path && !strcmp(file->path, path))
		return NULL;
	char *copy = strdup(path);
	if (!copy)
		return &stall_enomem;
	free(file->path);
	file->path = copy;
	return NULL;
}

static struct stall_error *set_seen(struct stall_storage_file *file, const struct seen *seen)
{
	file->found = true;
	file->dev = seen->dev;
	file->ino = seen->ino;
	file->fd = seen->fd;
	file->deleted = seen->unlinked;
	file->gone = false;
	return set_path(file, seen->path);
}

static bool see_descriptor(const struct stall_target *target, int fd, struct seen *ret)
{
	struct statx status;

	if (!stall_wait_file_at(target, fd, ret->path, sizeof(ret->path), &status, &ret->unlinked))
		return false;
	ret->dev = makedev(status.stx_dev_major, status.stx_dev_minor);
	ret->ino = status.stx_ino;
	ret->fd = fd;
	return true;
}

// How many of the last names of the path are those that the kernel reported, from the last one on.
static int common_names(const struct stall_wait_file *record, const char *path)
{
	size_t count =
		record->name_count < STALL_FILE_NAMES ? record->name_count : STALL_FILE_NAMES;
	const char *end = path + strlen(path);
	size_t i = 0;

	for (; i < count && end > path; i++) {
		const char *name = record->names[i];
		size_t length = strnlen(name, STALL_FILE_NAME);
		const char *start = end;

		while (start > path && start[-1] != '/')
			start--;
		size_t there = end - start;
		// A long name is cut in the record.
		bool same = length < STALL_FILE_NAME - 1 ? there == length : there >= length;
		if (!length || !same || memcmp(start, name, length))
			break;
		end = start > path ? start - 1 : start;
	}
	return (int)i;
}

// How surely it is the same file; 0: it is another one.
static int rank(const struct stall_storage_file *file, const struct seen *seen)
{
	if (file->found)
		return file->dev == seen->dev && file->ino == seen->ino ? SURE : 0;
	if (stall_wait_file_is(&file->record->key, seen->dev, seen->ino))
		return SURE;
	// File systems on a device show that device; btrfs and overlayfs one that they made up.
	if (major(seen->dev))
		return 0;
	int names = common_names(file->record, seen->path);
	if (!names)
		return 0;
	return file->record->key.id == seen->ino ? SAME_NUMBER + names : names;
}

static struct stall_error *set_names(struct stall_storage_file *file)
{
	_cleanup_free_ char *path = NULL;

	if (!file->record->name_count)
		return NULL;
	struct stall_error *err = stall_wait_file_join(file->record, &path);
	return err ? err : set_path(file, path);
}

struct stall_error *stall_storage_files_take(struct stall_storage_files *files, size_t index,
					     const struct stall_target *target,
					     const struct stall_wait_file *record)
{
	struct stall_storage_file *file = &files->files[index];
	_cleanup_free_ struct seen *seen = malloc(sizeof(*seen));
	bool is_first = !file->record;

	if (!seen)
		return &stall_enomem;
	if (is_first && !(file->record = malloc(sizeof(*file->record))))
		return &stall_enomem;
	*file->record = *record;
	if (record->fd >= 0 && see_descriptor(target, record->fd, seen) && rank(file, seen))
		return set_seen(file, seen);
	return is_first ? set_names(file) : NULL;
}

/* The present names. */

struct search {
	struct stall_storage_file **files; // that are not where they were
	int *best;			   // their ranks
	bool *ambiguous;
	size_t count;
};

static void search_deinit(struct search *search)
{
	free(search->files);
	free(search->best);
	free(search->ambiguous);
}

static struct stall_error *try_all(struct search *search, const struct seen *seen)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < search->count; i++) {
		struct stall_storage_file *file = search->files[i];
		int found = search->best[i] < SURE ? rank(file, seen) : 0;

		if (!found || found < search->best[i])
			continue;
		if (found == search->best[i]) {
			// The same file may be open several times.
			search->ambiguous[i] |= strcmp(file->path, seen->path) != 0;
			continue;
		}
		bool was_found = file->found;
		err = set_seen(file, seen);
		file->found = was_found; // until all were tried
		search->best[i] = found;
		search->ambiguous[i] = false;
	}
	return err;
}

static struct stall_error *search_descriptors(struct search *search,
					      const struct stall_target *target, struct seen *seen)
{
	_cleanup_closedir_ DIR *dir = stall_target_open_files(target);
	struct stall_error *err = NULL;
	size_t count = 0;

	if (!dir)
		return errno == ENOMEM ? &stall_enomem : NULL;
	for (int fd; !err && count < MAX_DESCRIPTORS && (fd = stall_next_open_file(dir)) >= 0;
	     count++)
		if (see_descriptor(target, fd, seen))
			err = try_all(search, seen);
	return err;
}

static bool parse_mapping(const struct stall_target *target, char *line, struct seen *ret)
{
	unsigned int dev_major, dev_minor;
	char root[PATH_MAX];
	int path = 0;

	if (sscanf(line, "%*x-%*x %*4s %*x %x:%x %" SCNu64 " %n", &dev_major, &dev_minor, &ret->ino,
		   &path) < 3 ||
	    !ret->ino || line[path] != '/')
		return false;
	line[strcspn(line, "\n")] = '\0';
	stall_target_root(target, root, sizeof(root));
	snprintf(ret->path, sizeof(ret->path), "%s", stall_path_in_root(line + path, root));
	ret->dev = makedev(dev_major, dev_minor);
	ret->unlinked = stall_wait_file_cut_deleted(ret->path);
	ret->fd = -1;
	return true;
}

static void fclosep(FILE **file)
{
	if (*file)
		fclose(*file);
}

// Files that were closed and are still mapped.
static struct stall_error *search_mappings(struct search *search, const struct stall_target *target,
					   struct seen *seen)
{
	int fd = openat(target->procfd, "maps", O_RDONLY | O_CLOEXEC);
	_cleanup_(fclosep) FILE *maps = fd < 0 ? NULL : fdopen(fd, "r");
	char line[PATH_MAX + 256];
	struct stall_error *err = NULL;

	if (!maps) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	for (size_t i = 0; !err && i < MAX_MAP_LINES && fgets(line, sizeof(line), maps); i++)
		if (parse_mapping(target, line, seen))
			err = try_all(search, seen);
	return err;
}

// Whether the file is still at its path.
static bool is_there(const struct stall_target *target, const struct stall_storage_file *file)
{
	char path[PATH_MAX + 32];
	struct statx status;

	if (!file->path || file->path[0] != '/')
		return false;
	snprintf(path, sizeof(path), "root%s", file->path);
	return stall_wait_file_stat(target->procfd, path, AT_SYMLINK_NOFOLLOW, &status) &&
	       makedev(status.stx_dev_major, status.stx_dev_minor) == file->dev &&
	       status.stx_ino == file->ino;
}

// The path by a mount of its file system, of a file whose names in the record reach the root of that.
// It is known where the folder is there; then the file is, or has no name any more.
static bool find_by_mount(const struct stall_target *target, const struct stall_mount *mount,
			  const char *names, struct stall_storage_file *file, struct seen *seen)
{
	size_t length = strcmp(mount->root, "/") ? strlen(mount->root) : 0;
	const char *point = strcmp(mount->point, "/") ? mount->point : "";
	unsigned int dev_major, dev_minor;
	char folder[PATH_MAX];
	struct statx status;

	if (sscanf(mount->device_number, "%u:%u", &dev_major, &dev_minor) != 2)
		return false;
	seen->dev = makedev(dev_major, dev_minor);
	seen->ino = file->record->key.id;
	if (!stall_wait_file_is(&file->record->key, seen->dev, seen->ino) ||
	    strncmp(names, mount->root, length) != 0 || names[length] != '/')
		return false;
	snprintf(seen->path, sizeof(seen->path), "%s%s", point, names + length);
	snprintf(folder, sizeof(folder), "root%.*s", (int)(strrchr(seen->path, '/') - seen->path),
		 seen->path);
	return stall_wait_file_stat(target->procfd, folder, 0, &status) &&
	       makedev(status.stx_dev_major, status.stx_dev_minor) == seen->dev;
}

// A file that was closed before its record was read.
static struct stall_error *find_by_names(const struct stall_target *target,
					 struct stall_storage_file *file, struct seen *seen)
{
	const struct stall_wait_file *record = file->record;
	_cleanup_free_ char *names = NULL, *mounts = NULL;
	char *save = NULL;
	struct stall_mount mount;

	if (!record->name_count || record->name_count >= STALL_FILE_NAMES)
		return NULL;
	for (size_t i = 0; i < record->name_count; i++)
		if (strnlen(record->names[i], STALL_FILE_NAME) >= STALL_FILE_NAME - 1)
			return NULL; // it may have been cut
	struct stall_error *err = stall_wait_file_join(record, &names);
	if (err)
		return err;
	mounts = stall_mounts_read(target->procfd, "mountinfo");
	if (!mounts)
		return NULL;
	*seen = (struct seen){.fd = -1};
	for (char *line = strtok_r(mounts, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (stall_mount_parse(line, &mount) &&
		    find_by_mount(target, &mount, names + strlen("..."), file, seen)) {
			err = set_seen(file, seen);
			file->gone = file->deleted = !is_there(target, file);
			return err;
		}
	return NULL;
}

static struct stall_error *finish_search(struct search *search, const struct stall_target *target,
					 struct seen *seen)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < search->count; i++) {
		struct stall_storage_file *file = search->files[i];

		file->searches++;
		if (search->best[i] && !search->ambiguous[i]) {
			file->found = true;
			continue;
		}
		file->fd = -1;
		if (file->found) {
			file->gone = file->deleted = !is_there(target, file);
			continue;
		}
		if (search->ambiguous[i])
			err = set_names(file);
		if (!err)
			err = find_by_names(target, file, seen);
	}
	return err;
}

// Whether it is open where it was.
static bool is_still_open(struct stall_storage_file *file, const struct stall_target *target,
			  struct seen *seen, struct stall_error **err)
{
	if (!file->found || file->fd < 0 || !see_descriptor(target, file->fd, seen) ||
	    !rank(file, seen))
		return false;
	*err = set_seen(file, seen);
	return true;
}

static struct stall_error *collect(struct stall_storage_files *files,
				   const struct stall_target *target, struct search *search,
				   struct seen *seen)
{
	struct stall_error *err = NULL;

	search->files = calloc(files->count, sizeof(*search->files));
	search->best = calloc(files->count, sizeof(*search->best));
	search->ambiguous = calloc(files->count, sizeof(*search->ambiguous));
	if (!search->files || !search->best || !search->ambiguous)
		return &stall_enomem;
	for (size_t i = 0; !err && i < files->count; i++) {
		struct stall_storage_file *file = &files->files[i];

		if (!file->record || file->record->key.tgid != (uint32_t)target->pid ||
		    file->gone || (!file->found && file->searches >= MAX_SEARCHES) ||
		    is_still_open(file, target, seen, &err))
			continue;
		search->files[search->count++] = file;
	}
	return err;
}

struct stall_error *stall_storage_files_update(struct stall_storage_files *files,
					       const struct stall_target *target)
{
	_cleanup_(search_deinit) struct search search = {};
	_cleanup_free_ struct seen *seen = malloc(sizeof(*seen));
	struct stall_error *err = seen ? collect(files, target, &search, seen) : &stall_enomem;

	if (err || !search.count)
		return err;
	err = search_descriptors(&search, target, seen);
	if (!err)
		err = search_mappings(&search, target, seen);
	if (!err)
		err = finish_search(&search, target, seen);
	return err;
}

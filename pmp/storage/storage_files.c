// SPDX-License-Identifier: Apache-2.0
#include "storage/storage_files.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/hash_index.h"
#include "proc/descriptors.h"
#include "proc/maps_line.h"
#include "proc/mounts.h"
#include "proc/path_open.h"
#include "proc/paths.h"
#include "proc/proc_file.h"
#include "waits/wait_files.h"

#define MAX_DESCRIPTORS 65536
#define MAX_MAP_BYTES ((size_t)32 << 20)
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

static void see(const struct stall_descriptor *descriptor, struct seen *ret)
{
	if (descriptor->path != ret->path)
		snprintf(ret->path, sizeof(ret->path), "%s", descriptor->path);
	ret->dev = descriptor->status.dev;
	ret->ino = descriptor->status.ino;
	ret->unlinked = descriptor->deleted;
	ret->fd = descriptor->fd;
}

static bool see_descriptor(const struct stall_target *target, int fd, struct seen *ret)
{
	struct stall_descriptor descriptor;

	if (!stall_descriptor_read(target, fd, &descriptor, ret->path, sizeof(ret->path)))
		return false;
	see(&descriptor, ret);
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

struct known_mount {
	struct stall_mount mount;
	uint64_t dev;
};

// Of the process; read once, by the first file that needs them.
struct known_mounts {
	bool is_read;
	char *text; // NULL: they cannot be read
	struct known_mount *mounts;
	size_t count, capacity;
};

struct search {
	struct stall_storage_file **files; // that are not where they were
	int *best;			   // their ranks
	bool *ambiguous;
	size_t count;
	// What a file that is seen can be: of the same number, or, where it was not found yet, of
	// the same last name.
	struct stall_hash_index by_number, by_name;
	struct known_mounts mounts;
};

static uint64_t number_hash(uint64_t number)
{
	return stall_hash(&number, sizeof(number));
}

// A long name is cut in a record.
static uint64_t name_hash(const char *name)
{
	return stall_hash(name, strnlen(name, STALL_FILE_NAME - 1));
}

static struct stall_error *add_wanted(struct search *search, struct stall_storage_file *file)
{
	const struct stall_wait_file *record = file->record;
	uint64_t number = file->found ? file->ino : record->key.id;

	if (!stall_hash_index_add(&search->by_number, number_hash(number), search->count) ||
	    (!file->found && record->name_count &&
	     !stall_hash_index_add(&search->by_name, name_hash(record->names[0]), search->count)))
		return &stall_enomem;
	search->files[search->count++] = file;
	return NULL;
}

static void search_deinit(struct search *search)
{
	free(search->files);
	free(search->best);
	free(search->ambiguous);
	stall_hash_index_deinit(&search->by_number);
	stall_hash_index_deinit(&search->by_name);
	free(search->mounts.text);
	free(search->mounts.mounts);
}

static struct stall_error *try_one(struct search *search, size_t i, const struct seen *seen)
{
	struct stall_storage_file *file = search->files[i];
	int found = search->best[i] < SURE ? rank(file, seen) : 0;

	if (!found || found < search->best[i])
		return NULL;
	if (found == search->best[i]) {
		// The same file may be open several times.
		search->ambiguous[i] |= strcmp(file->path, seen->path) != 0;
		return NULL;
	}
	bool was_found = file->found;
	struct stall_error *err = set_seen(file, seen);
	file->found = was_found; // until all were tried
	search->best[i] = found;
	search->ambiguous[i] = false;
	return err;
}

static struct stall_error *try_some(struct search *search, const struct stall_hash_index *index,
				    uint64_t hash, const struct seen *seen)
{
	struct stall_error *err = NULL;
	size_t at = 0;
	uint32_t found;

	while (!err && (found = stall_hash_index_next(index, hash, &at)) != STALL_HASH_END)
		err = try_one(search, found, seen);
	return err;
}

static struct stall_error *try_all(struct search *search, const struct seen *seen)
{
	const char *slash = strrchr(seen->path, '/');
	struct stall_error *err =
		try_some(search, &search->by_number, number_hash(seen->ino), seen);

	// Only of a file system without a device of its own is a name of use: see rank().
	if (err || major(seen->dev))
		return err;
	return try_some(search, &search->by_name, name_hash(slash ? slash + 1 : seen->path), seen);
}

struct visit {
	struct search *search;
	struct seen *seen;
	struct stall_error *err;
};

static bool try_descriptor(void *arg, const struct stall_descriptor *descriptor)
{
	struct visit *visit = arg;

	see(descriptor, visit->seen);
	visit->err = try_all(visit->search, visit->seen);
	return !visit->err;
}

static struct stall_error *search_descriptors(struct search *search,
					      const struct stall_target *target, struct seen *seen)
{
	struct visit visit = {search, seen, NULL};
	size_t lost;
	struct stall_error *err =
		stall_descriptors_visit(target, MAX_DESCRIPTORS, try_descriptor, &visit, &lost);

	if (err && err != &stall_enomem) { // without rights, or it has ended
		stall_error_destroy(err);
		err = NULL;
	}
	return err ? err : visit.err;
}

static struct stall_error *see_mapping(const struct stall_maps_line *line, const char *root,
				       struct seen *ret)
{
	char *path = stall_maps_line_path(line, &ret->unlinked);

	if (!path)
		return &stall_enomem;
	snprintf(ret->path, sizeof(ret->path), "%s", stall_path_in_root(path, root));
	free(path);
	ret->dev = line->dev;
	ret->ino = line->ino;
	ret->fd = -1;
	return NULL;
}

// Files that were closed and are still mapped.
static struct stall_error *search_mappings(struct search *search, const struct stall_target *target,
					   struct seen *seen)
{
	_cleanup_free_ char *text = malloc(MAX_MAP_BYTES);
	char root[PATH_MAX];
	struct stall_error *err = NULL;

	if (!text || stall_proc_read(target, "maps", text, MAX_MAP_BYTES) < 0)
		return text ? NULL : &stall_enomem;
	stall_proc_root(target, root, sizeof(root));
	for (const char *at = text, *end; !err && *at; at = *end ? end + 1 : end) {
		struct stall_maps_line line;

		end = strchrnul(at, '\n');
		if (!stall_maps_line_parse(at, (size_t)(end - at), &line) || !line.ino ||
		    !line.path_size || line.path[0] != '/')
			continue;
		err = see_mapping(&line, root, seen);
		if (!err)
			err = try_all(search, seen);
	}
	return err;
}

static bool is_at(const struct stall_target *target, const char *name, unsigned int how,
		  struct stall_path_status *ret)
{
	const struct stall_path path = {target, STALL_PATH_IN_ROOT, name, 0};
	_cleanup_error_ struct stall_error *err = stall_path_status(&path, how, ret);

	return !err;
}

// Whether the file is still at its path.
static bool is_there(const struct stall_target *target, const struct stall_storage_file *file)
{
	struct stall_path_status status;

	return file->path && file->path[0] == '/' &&
	       is_at(target, file->path, STALL_PATH_NOFOLLOW, &status) && status.dev == file->dev &&
	       status.ino == file->ino;
}

static struct stall_error *read_mounts(const struct stall_target *target,
				       struct known_mounts *mounts)
{
	char *save = NULL;

	if (mounts->is_read)
		return NULL;
	mounts->is_read = true;
	mounts->text = stall_mounts_read(target);
	if (!mounts->text)
		return NULL;
	for (char *line = strtok_r(mounts->text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		struct known_mount known = {};
		unsigned int dev_major, dev_minor;

		if (!stall_mount_parse(line, &known.mount) ||
		    sscanf(known.mount.device_number, "%u:%u", &dev_major, &dev_minor) != 2)
			continue;
		if (!stall_array_reserve(&mounts->mounts, mounts->count, 1, &mounts->capacity))
			return &stall_enomem;
		known.dev = makedev(dev_major, dev_minor);
		mounts->mounts[mounts->count++] = known;
	}
	return NULL;
}

// The path by a mount of its file system, of a file whose names in the record reach the root of that.
// It is known where the folder is there; then the file is, or has no name any more.
static bool find_by_mount(const struct stall_target *target, const struct known_mount *known,
			  const char *names, struct stall_storage_file *file, struct seen *seen)
{
	const struct stall_mount *mount = &known->mount;
	size_t length = strcmp(mount->root, "/") ? strlen(mount->root) : 0;
	const char *point = strcmp(mount->point, "/") ? mount->point : "";
	char folder[PATH_MAX];
	struct stall_path_status status;

	seen->dev = known->dev;
	seen->ino = file->record->key.id;
	if (!stall_wait_file_is(&file->record->key, seen->dev, seen->ino) ||
	    strncmp(names, mount->root, length) != 0 || names[length] != '/')
		return false;
	snprintf(seen->path, sizeof(seen->path), "%s%s", point, names + length);
	snprintf(folder, sizeof(folder), "%.*s/", (int)(strrchr(seen->path, '/') - seen->path),
		 seen->path);
	return is_at(target, folder, 0, &status) && status.dev == seen->dev;
}

// A file that was closed before its record was read.
static struct stall_error *find_by_names(const struct stall_target *target,
					 struct known_mounts *mounts,
					 struct stall_storage_file *file, struct seen *seen)
{
	const struct stall_wait_file *record = file->record;
	_cleanup_free_ char *names = NULL;

	if (!record->name_count || record->name_count >= STALL_FILE_NAMES)
		return NULL;
	for (size_t i = 0; i < record->name_count; i++)
		if (strnlen(record->names[i], STALL_FILE_NAME) >= STALL_FILE_NAME - 1)
			return NULL; // it may have been cut
	struct stall_error *err = stall_wait_file_join(record, &names);
	if (!err)
		err = read_mounts(target, mounts);
	if (err)
		return err;
	*seen = (struct seen){.fd = -1};
	for (size_t i = 0; i < mounts->count; i++)
		if (find_by_mount(target, &mounts->mounts[i], names + strlen("..."), file, seen)) {
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
			err = find_by_names(target, &search->mounts, file, seen);
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
		err = add_wanted(search, file);
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

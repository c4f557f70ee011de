// SPDX-License-Identifier: Apache-2.0
#include "snapshot/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "proc/maps_line.h"
#include "proc/module_file.h"
#include "proc/paths.h"
#include "proc/proc_file.h"
#include "proc/read_child.h"
#include "snapshot/open_files.h"

#define MAX_EMPTY_NS UINT64_C(200000000) // for which an empty file is read again
#define PAUSE_US 1000
#define MAX_LINE (64 * 1024) // a path is at most one page, four times that when escaped

// A file mapping without code (data, read-only data) awaiting its module.
struct data_mapping {
	size_t mapping;
	uint64_t dev, ino;
};

struct builder {
	struct stall_maps *maps;
	size_t mapping_capacity, module_capacity;
	struct stall_hash_index by_place; // modules
	struct data_mapping *data;
	size_t data_count, data_capacity;
	const struct stall_target *target;
	const struct stall_maps_text *text; // NULL: the live process is read
	pid_t pid;
	char root[PATH_MAX]; // of the process, to cut off its paths
};

static bool is_vdso(const struct stall_maps_line *line)
{
	return line->path_size == 6 && !memcmp(line->path, "[vdso]", 6);
}

static uint64_t place_hash(const struct stall_maps_line *line)
{
	const uint64_t key[] = {line->dev, line->ino, line->start - line->offset};

	return stall_hash(key, sizeof(key));
}

// The module of an executable mapping: the same file at the same distance from its offsets.
static uint32_t find_module(const struct builder *builder, const struct stall_maps_line *line)
{
	uint64_t hash = place_hash(line);
	uint32_t found;
	size_t at = 0;

	while ((found = stall_hash_index_next(&builder->by_place, hash, &at)) != STALL_HASH_END) {
		const struct stall_module *module = &builder->maps->modules[found];

		if (module->ino == line->ino && module->dev == line->dev && line->ino &&
		    module->start - module->offset == line->start - line->offset)
			return found;
	}
	return STALL_NO_MODULE;
}

static struct stall_error *add_module(struct builder *builder, const struct stall_maps_line *line,
				      uint32_t *ret)
{
	struct stall_maps *maps = builder->maps;
	struct stall_module module = {
		.start = line->start,
		.end = line->end,
		.offset = line->offset,
		.dev = line->dev,
		.ino = line->ino,
		.fd = -1,
	};

	if (maps->module_count == STALL_MAX_MODULES) {
		maps->modules_lost++;
		*ret = STALL_NO_MODULE;
		return NULL;
	}
	if (!stall_array_reserve(&maps->modules, maps->module_count, 1,
				 &builder->module_capacity) ||
	    !stall_hash_index_add(&builder->by_place, place_hash(line),
				  (uint32_t)maps->module_count))
		return &stall_enomem;
	module.path = stall_maps_line_path(line, &module.deleted);
	if (!module.path)
		return &stall_enomem;
	const char *inside = stall_path_in_root(module.path, builder->root);
	memmove(module.path, inside, strlen(inside) + 1);
	*ret = (uint32_t)maps->module_count;
	maps->modules[maps->module_count++] = module;
	return NULL;
}

static struct stall_error *set_module(struct builder *builder, const struct stall_maps_line *line,
				      struct stall_mapping *mapping)
{
	struct stall_maps *maps = builder->maps;
	uint32_t found;

	if (!line->executable && line->ino) {
		if (!stall_array_reserve(&builder->data, builder->data_count, 1,
					 &builder->data_capacity))
			return &stall_enomem;
		builder->data[builder->data_count++] = (struct data_mapping){
			.mapping = (size_t)(mapping - maps->mappings),
			.dev = line->dev,
			.ino = line->ino,
		};
		return NULL;
	}
	// The vdso is read from the process; this is the error where it cannot be read.
	if (!line->executable || (!line->ino && (!is_vdso(line) || builder->text)))
		return NULL;
	found = find_module(builder, line);
	if (found == STALL_NO_MODULE)
		return add_module(builder, line, &mapping->module);
	maps->modules[found].end = line->end;
	mapping->module = found;
	return NULL;
}

static struct stall_error *add_line(struct builder *builder, const char *text, size_t size)
{
	struct stall_maps *maps = builder->maps;
	struct stall_maps_line line;

	if (!stall_maps_line_parse(text, size, &line))
		return stall_error_create(STALL_ERROR_FORMAT, "/proc/%d/maps: cannot read \"%.*s\"",
					  builder->pid, size > 100 ? 100 : (int)size, text);
	// Mappings change while the file is read in pieces: keep them sorted and without overlaps.
	if (maps->mapping_count && line.start < maps->mappings[maps->mapping_count - 1].end)
		return NULL;
	if (maps->mapping_count == STALL_MAX_MAPPINGS)
		return stall_error_create(STALL_ERROR_LIMIT,
					  "process %d has more than %d memory mappings, the limit",
					  builder->pid, STALL_MAX_MAPPINGS);
	if (!stall_array_reserve(&maps->mappings, maps->mapping_count, 1,
				 &builder->mapping_capacity))
		return &stall_enomem;
	struct stall_mapping *mapping = &maps->mappings[maps->mapping_count++];
	*mapping = (struct stall_mapping){
		.start = line.start,
		.end = line.end,
		.offset = line.offset,
		.executable = line.executable,
		.readable = line.readable,
		.module = STALL_NO_MODULE,
	};
	return set_module(builder, &line, mapping);
}

static struct stall_error *read_lines(struct builder *builder)
{
	_cleanup_free_ char *buf = malloc(MAX_LINE);
	size_t used = 0;

	if (!buf)
		return &stall_enomem;
	for (;;) {
		size_t n;
		struct stall_error *err =
			stall_read_child_next(builder->target, buf + used, MAX_LINE - used, &n);
		if (err)
			return err;
		if (n == 0)
			break;
		used += n;

		char *line = buf, *newline;
		while ((newline = memchr(line, '\n', used))) {
			size_t length = (size_t)(newline - line);

			err = add_line(builder, line, length);
			if (err)
				return err;
			line = newline + 1;
			used -= length + 1;
		}
		memmove(buf, line, used);
		if (used == MAX_LINE)
			return stall_error_create(STALL_ERROR_LIMIT,
						  "/proc/%d/maps has a line of more than %d bytes",
						  builder->pid, MAX_LINE);
	}
	return NULL;
}

static struct stall_error *read_text(struct builder *builder)
{
	for (const char *line = builder->text->text; *line;) {
		size_t size = strcspn(line, "\n");
		struct stall_maps_line parsed;

		if (builder->maps->mapping_count == STALL_MAX_TEXT_MAPPINGS)
			return NULL;
		if (stall_maps_line_parse(line, size, &parsed)) {
			struct stall_error *err = add_line(builder, line, size);
			if (err)
				return err;
		}
		line += size + (line[size] == '\n');
	}
	return NULL;
}

struct module_key {
	uint64_t dev, ino, start;
	uint32_t index;
};

static int compare_keys(const void *a, const void *b)
{
	const struct module_key *x = a, *y = b;

	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return (x->start > y->start) - (x->start < y->start);
}

// The first that is not before the wanted one.
static size_t find_key(const struct module_key *keys, size_t count, const struct module_key *wanted)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (compare_keys(&keys[middle], wanted) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool same_file(const struct module_key *key, const struct data_mapping *data)
{
	return key->dev == data->dev && key->ino == data->ino;
}

// A loaded file is laid out headers, code, data: of several copies it is the one that starts last
// before the data, or for a part before the code, the one that starts next after it.
static uint32_t module_of_data(const struct module_key *keys, size_t count,
			       const struct data_mapping *data, const struct stall_mapping *mapping)
{
	const struct module_key wanted = {data->dev, data->ino, mapping->start, 0};
	size_t low = find_key(keys, count, &wanted);
	bool before = low > 0 && same_file(&keys[low - 1], data);
	bool after = low < count && same_file(&keys[low], data);
	if (before && (!after || mapping->offset > 0))
		return keys[low - 1].index;
	return after ? keys[low].index : STALL_NO_MODULE;
}

static struct stall_error *sort_modules(const struct stall_maps *maps, struct module_key **ret)
{
	struct module_key *keys = calloc(maps->module_count + 1, sizeof(*keys));

	if (!keys)
		return &stall_enomem;
	for (uint32_t i = 0; i < maps->module_count; i++) {
		const struct stall_module *module = &maps->modules[i];

		keys[i] = (struct module_key){module->dev, module->ino, module->start, i};
	}
	qsort(keys, maps->module_count, sizeof(*keys), compare_keys);
	*ret = keys;
	return NULL;
}

static void set_data_modules(struct builder *builder, const struct module_key *keys)
{
	struct stall_maps *maps = builder->maps;

	for (size_t i = 0; i < builder->data_count; i++) {
		const struct data_mapping *data = &builder->data[i];
		struct stall_mapping *mapping = &maps->mappings[data->mapping];

		mapping->module = module_of_data(keys, maps->module_count, data, mapping);
	}
}

static struct stall_error *share(const struct stall_module *owner, struct stall_module *module)
{
	module->fd = owner->fd;
	module->local = owner->local;
	module->st_dev = owner->st_dev;
	module->st_ino = owner->st_ino;
	module->error = owner->error;
	module->shared = true;
	if (module->deleted == owner->deleted)
		return NULL;
	// A file that is really called "x (deleted)".
	char *path = strdup(owner->path);
	if (!path)
		return &stall_enomem;
	free(module->path);
	module->path = path;
	module->deleted = owner->deleted;
	return NULL;
}

// Only once these maps are complete: until then they can still be discarded.
static struct stall_error *remember_open(struct stall_open_files *files,
					 const struct stall_maps *maps)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < maps->module_count && files->count < STALL_MAX_OPEN_FILES;
	     i++)
		if (maps->modules[i].ino && maps->modules[i].fd >= 0)
			err = stall_open_files_add(files, &maps->modules[i]);
	return err;
}

static struct stall_error *open_module(const struct builder *builder, struct stall_module *module,
				       const struct stall_mapping *mapping)
{
	const struct stall_maps_text *text = builder->text;

	if (text && text->sysroot != -1)
		return stall_module_open_under(text->sysroot, module);
	if (text)
		return stall_module_open_path(text->target, module, mapping->start, mapping->end);
	return stall_module_open(builder->target, module, mapping->start, mapping->end);
}

// The files that are open already.
struct known_files {
	struct stall_open_files own; // of these maps
	struct stall_open_files previous;
	const struct stall_open_files *others; // of other processes
};

static void known_files_deinit(struct known_files *known)
{
	stall_open_files_deinit(&known->own);
	stall_open_files_deinit(&known->previous);
}

static struct stall_error *find_owner(const struct known_files *known, struct stall_module *module,
				      const struct stall_module **ret)
{
	int own_fd = module->fd;

	*ret = stall_open_files_find(&known->own, module);
	if (!*ret && module->ino)
		*ret = stall_open_files_find(known->others, module);
	if (!*ret)
		return NULL;
	struct stall_error *err = share(*ret, module);
	if (own_fd >= 0)
		close(own_fd);
	return err;
}

// Takes over the descriptor of the same file. While it is open, its inode number is not given to
// another file.
static bool take_over(const struct known_files *known, struct stall_module *module)
{
	struct stall_module *old = stall_open_files_find(&known->previous, module);

	if (!old || old->fd < 0)
		return false;
	module->fd = old->fd;
	module->local = old->local;
	module->st_dev = old->st_dev;
	module->st_ino = old->st_ino;
	old->fd = -1;
	return true;
}

// One descriptor for each file, however often it is mapped.
static struct stall_error *find_file(const struct builder *builder, struct known_files *known,
				     struct stall_module *module)
{
	const struct stall_mapping *mapping = stall_maps_find(builder->maps, module->start);
	const struct stall_module *owner;
	struct stall_error *err = find_owner(known, module, &owner);

	if (err || owner)
		return err;
	if (take_over(known, module))
		err = stall_module_settle_path(builder->target, module);
	else if (mapping) // map_files has one link per mapping, not per module
		err = open_module(builder, module, mapping);
	if (err)
		return err;
	stall_module_identify(module);
	err = module->fd < 0 ? NULL : find_owner(known, module, &owner);
	return err || owner ? err : stall_open_files_add(&known->own, module);
}

static struct stall_error *open_modules(const struct builder *builder,
					const struct stall_maps *previous,
					const struct stall_open_files *files)
{
	struct stall_maps *maps = builder->maps;
	_cleanup_(known_files_deinit) struct known_files known = {.others = files};
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && previous && i < previous->module_count; i++)
		err = stall_open_files_add(&known.previous, &previous->modules[i]);
	for (size_t i = 0; !err && i < maps->module_count; i++)
		err = find_file(builder, &known, &maps->modules[i]);
	return err;
}

static struct stall_error *process_ended(const struct stall_target *target)
{
	return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended", target->pid);
}

static struct stall_error *read_once(struct builder *builder)
{
	const struct stall_target *target = builder->target;
	struct stall_error *err = stall_read_child_open(target, "maps");

	if (err && (err->errnum == ENOENT || err->errnum == ESRCH)) {
		stall_error_destroy(err);
		return process_ended(target);
	}
	if (err && err->code != STALL_ERROR_LATE && err->errnum) {
		int errnum = err->errnum;

		stall_error_destroy(err);
		return stall_error_os(
			errnum, "cannot open /proc/%d/maps (needs its user, or CAP_SYS_PTRACE)",
			target->pid);
	}
	if (err)
		return err;
	stall_proc_root(target, builder->root, sizeof(builder->root));
	return read_lines(builder);
}

// The file stays with the memory that the process had when it was opened: it is empty once the
// process has executed another program, and then the next one is not.
static struct stall_error *read_live(struct builder *builder)
{
	uint64_t end_ns = stall_clock_ns(CLOCK_MONOTONIC) + MAX_EMPTY_NS;
	struct stall_error *err = read_once(builder);

	// On a busy host a process can execute another program during each of several readings.
	while (!err && !builder->maps->mapping_count && stall_clock_ns(CLOCK_MONOTONIC) < end_ns) {
		usleep(PAUSE_US); // no event says that exec is over
		err = stall_target_check(builder->target);
		if (!err)
			err = read_once(builder);
	}
	if (err)
		return err;
	if (builder->maps->mapping_count == 0)
		// An exiting process gives up its memory before it becomes a zombie.
		return process_ended(builder->target);
	return NULL;
}

static struct stall_error *build(struct builder *builder, struct stall_maps *previous,
				 const struct stall_open_files *files)
{
	_cleanup_free_ struct module_key *keys = NULL;
	struct stall_error *err = builder->text ? read_text(builder) : read_live(builder);

	if (!err)
		err = sort_modules(builder->maps, &keys);
	if (err)
		return err;
	set_data_modules(builder, keys);
	return open_modules(builder, previous, files);
}

static struct stall_error *create(struct builder *builder, struct stall_maps *previous,
				  struct stall_open_files *files, struct stall_maps **ret)
{
	builder->maps = calloc(1, sizeof(*builder->maps));
	if (!builder->maps)
		return &stall_enomem;
	struct stall_error *err = build(builder, previous, files);
	free(builder->data);
	stall_hash_index_deinit(&builder->by_place);
	if (!err && files)
		err = remember_open(files, builder->maps);
	if (err) {
		stall_maps_destroy(builder->maps);
		return err;
	}
	*ret = builder->maps;
	return NULL;
}

struct stall_error *stall_maps_create(const struct stall_target *target,
				      struct stall_maps *previous, struct stall_open_files *files,
				      struct stall_maps **ret)
{
	struct builder builder = {.target = target, .pid = target->pid, .root = ""};

	return create(&builder, previous, files, ret);
}

struct stall_error *stall_maps_create_text(const struct stall_maps_text *text,
					   struct stall_maps *previous,
					   struct stall_open_files *files, struct stall_maps **ret)
{
	struct builder builder = {
		.target = text->target,
		.text = text,
		.pid = text->target ? text->target->pid : 0,
		.root = "",
	};

	return create(&builder, previous, files, ret);
}

void stall_maps_destroy(struct stall_maps *maps)
{
	if (!maps)
		return;
	for (size_t i = 0; i < maps->module_count; i++) {
		free(maps->modules[i].path);
		if (maps->modules[i].shared)
			continue;
		if (maps->modules[i].fd >= 0)
			close(maps->modules[i].fd);
		free(maps->modules[i].error);
	}
	free(maps->modules);
	free(maps->mappings);
	free(maps);
}

const struct stall_mapping *stall_maps_find(const struct stall_maps *maps, uint64_t address)
{
	size_t low = 0, high = maps->mapping_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct stall_mapping *mapping = &maps->mappings[middle];

		if (address < mapping->start)
			high = middle;
		else if (address >= mapping->end)
			low = middle + 1;
		else
			return mapping;
	}
	return NULL;
}

const struct stall_mapping *stall_maps_find_code(const struct stall_maps *maps, uint32_t module,
						 uint64_t file_offset)
{
	for (size_t i = 0; i < maps->mapping_count; i++) {
		const struct stall_mapping *mapping = &maps->mappings[i];

		if (mapping->module == module && mapping->executable &&
		    file_offset >= mapping->offset &&
		    file_offset - mapping->offset < mapping->end - mapping->start)
			return mapping;
	}
	return NULL;
}

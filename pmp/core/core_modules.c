// SPDX-License-Identifier: Apache-2.0
#include "core/core_modules.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/hash_index.h"
#include "proc/module_file.h"

#define MAX_VDSO ((size_t)256 << 10)
#define FIRST_PAGE 4096
#define MAX_HEADER_DISTANCE 64 // mappings of one file: five or so

// The modules so far.
struct builder {
	const struct stall_core_memory *memory;
	const struct stall_core_notes *notes;
	int exe_fd, vdso_fd, sysroot;
	struct stall_maps *maps;
	size_t mapping_capacity, module_capacity;
	struct stall_hash_index by_place; // modules
	uint32_t main;
};

static int compare_files(const void *a, const void *b)
{
	const struct stall_core_file *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

static const struct stall_core_file *find_file(const struct stall_core_notes *notes,
					       uint64_t address)
{
	size_t low = 0, high = notes->file_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (notes->files[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low && address < notes->files[low - 1].end ? &notes->files[low - 1] : NULL;
}

// The mapping of the file's first page belongs to the same loaded object when it is below, and no
// other mapping of that file is in between.
static const struct stall_core_file *find_header(const struct stall_core_notes *notes,
						 const struct stall_core_file *code)
{
	size_t back = (size_t)(code - notes->files);

	if (back > MAX_HEADER_DISTANCE)
		back = MAX_HEADER_DISTANCE;
	for (size_t i = 0; i <= back; i++) {
		if (strcmp(code[-(ptrdiff_t)i].path, code->path) == 0 &&
		    code[-(ptrdiff_t)i].offset == 0)
			return &code[-(ptrdiff_t)i];
	}
	return NULL;
}

static struct stall_error *set_error(struct stall_module *module, const char *why)
{
	if (module->fd >= 0)
		close(module->fd);
	module->fd = -1;
	free(module->error);
	module->error = strdup(why);
	return module->error ? NULL : &stall_enomem;
}

static bool differs(const struct stall_elf *dumped, const struct stall_elf *file)
{
	if (dumped->build_id_size && file->build_id_size)
		return dumped->build_id_size != file->build_id_size ||
		       memcmp(dumped->build_id, file->build_id, file->build_id_size) != 0;
	// Without build-ids: two builds of one program hardly have segments of the same sizes.
	return dumped->segment_count != file->segment_count ||
	       memcmp(dumped->segments, file->segments,
		      file->segment_count * sizeof(*file->segments)) != 0;
}

// Compares the file with its first page, which the kernel dumps by default (core(5),
// /proc/PID/coredump_filter bit 4). Without that page the file is accepted.
static struct stall_error *check_module(const struct builder *b, struct stall_module *module,
					const struct stall_core_file *code)
{
	const struct stall_core_file *header = find_header(b->notes, code);
	_cleanup_(stall_elf_destroyp) struct stall_elf *file = NULL, *dumped = NULL;
	uint8_t page[FIRST_PAGE];
	int fd = module->fd;

	module->fd = -1;
	struct stall_error *err = stall_elf_open(fd, &file);
	if (err) {
		struct stall_error *failed = set_error(module, err->message);

		stall_error_destroy(err);
		return failed;
	}
	file->fd = -1; // the module's again
	module->fd = fd;
	if (!header ||
	    stall_core_memory_read(b->memory, header->start, page, sizeof(page)) != sizeof(page))
		return NULL;
	stall_error_destroy(stall_elf_open_image(page, sizeof(page), false, &dumped));
	if (dumped && differs(dumped, file))
		return set_error(module, "it is not the file that ran when the core was dumped: "
					 "give the right one with --sysroot or --exe");
	return NULL;
}

static struct stall_error *open_module(struct builder *b, struct stall_module *module,
				       const struct stall_core_file *code, bool is_main)
{
	if (!is_main || b->exe_fd < 0) {
		struct stall_error *err = stall_module_open_under(b->sysroot, module);
		if (err || module->fd < 0)
			return err;
		return check_module(b, module, code);
	}
	module->fd = b->exe_fd;
	b->exe_fd = -1;
	return check_module(b, module, code);
}

static uint64_t place_hash(const char *path, uint64_t distance)
{
	return stall_hash(path, strlen(path)) + distance;
}

static uint32_t known_module(const struct builder *b, const char *path, uint64_t distance)
{
	uint64_t hash = place_hash(path, distance);
	uint32_t found;
	size_t at = 0;

	while ((found = stall_hash_index_next(&b->by_place, hash, &at)) != STALL_HASH_END) {
		const struct stall_module *module = &b->maps->modules[found];

		if (module->start - module->offset == distance && strcmp(module->path, path) == 0)
			return found;
	}
	return STALL_NO_MODULE;
}

// mapping->module: STALL_NO_MODULE where there are too many.
static struct stall_error *append_module(struct builder *b, struct stall_mapping *mapping,
					 const char *path)
{
	struct stall_maps *maps = b->maps;

	mapping->module = STALL_NO_MODULE;
	if (maps->module_count == STALL_MAX_MODULES) {
		maps->modules_lost++;
		return NULL;
	}
	if (!stall_array_reserve(&maps->modules, maps->module_count, 1, &b->module_capacity) ||
	    !stall_hash_index_add(&b->by_place, place_hash(path, mapping->start - mapping->offset),
				  (uint32_t)maps->module_count))
		return &stall_enomem;
	struct stall_module module = {
		.start = mapping->start,
		.end = mapping->end,
		.offset = mapping->offset,
		.path = strdup(path),
		.fd = -1,
	};
	if (!module.path)
		return &stall_enomem;
	mapping->module = (uint32_t)maps->module_count;
	maps->modules[maps->module_count++] = module;
	return NULL;
}

static struct stall_error *add_module(struct builder *b, struct stall_mapping *mapping,
				      const struct stall_core_file *file)
{
	struct stall_error *err = append_module(b, mapping, file->path);

	if (err || mapping->module == STALL_NO_MODULE)
		return err;
	struct stall_module *module = &b->maps->modules[mapping->module];
	bool is_main = b->notes->entry >= mapping->start && b->notes->entry < mapping->end;
	module->deleted = file->deleted;
	if (is_main)
		b->main = mapping->module;
	return open_module(b, module, file, is_main);
}

static struct stall_error *add_file_mapping(struct builder *b, struct stall_mapping *mapping)
{
	const struct stall_core_file *file = find_file(b->notes, mapping->start);

	if (!file || !mapping->executable)
		return NULL;
	mapping->offset = file->offset + (mapping->start - file->start);
	mapping->module = known_module(b, file->path, mapping->start - mapping->offset);
	if (mapping->module == STALL_NO_MODULE)
		return add_module(b, mapping, file);
	struct stall_module *module = &b->maps->modules[mapping->module];
	if (mapping->end > module->end)
		module->end = mapping->end;
	return NULL;
}

// The vdso has no file; its pages are dumped like any other.
static struct stall_error *add_vdso(struct builder *b, struct stall_mapping *mapping)
{
	uint64_t size = mapping->end - mapping->start;

	if (size > MAX_VDSO)
		return NULL;
	_cleanup_free_ uint8_t *image = malloc(size);
	struct stall_error *err = image ? append_module(b, mapping, "[vdso]") : &stall_enomem;
	if (err || mapping->module == STALL_NO_MODULE)
		return err;
	struct stall_module *module = &b->maps->modules[mapping->module];
	if (stall_core_memory_read(b->memory, mapping->start, image, size) != size)
		return set_error(module, "the core does not hold it");
	module->fd = b->vdso_fd >= 0 ? b->vdso_fd : memfd_create("vdso", MFD_CLOEXEC);
	b->vdso_fd = -1;
	if (module->fd < 0 || write(module->fd, image, size) != (ssize_t)size)
		return set_error(module, "cannot keep a copy of it");
	return NULL;
}

static struct stall_error *add_mapping(struct builder *b, const struct stall_core_segment *segment)
{
	struct stall_maps *maps = b->maps;

	if (!stall_array_reserve(&maps->mappings, maps->mapping_count, 1, &b->mapping_capacity))
		return &stall_enomem;
	struct stall_mapping *mapping = &maps->mappings[maps->mapping_count++];
	*mapping = (struct stall_mapping){
		.start = segment->start,
		.end = segment->end,
		.executable = segment->flags & PF_X,
		.readable = segment->flags & PF_R,
		.module = STALL_NO_MODULE,
	};
	if (b->notes->vdso && b->notes->vdso == segment->start)
		return add_vdso(b, mapping);
	return add_file_mapping(b, mapping);
}

static bool is_dumped(const struct builder *b, size_t next_segment, uint64_t address)
{
	return next_segment && b->memory->segments[next_segment - 1].end > address;
}

// gdb's generate-core-file omits segments that it does not dump, including code; the list of mapped
// files still has their addresses.
static struct stall_error *add_mappings(struct builder *b)
{
	const struct stall_core_segment *segments = b->memory->segments;
	const struct stall_core_file *files = b->notes->files;
	size_t count = b->memory->count, segment = 0;
	uint64_t end = 0;

	for (size_t file = 0; file <= b->notes->file_count; file++) {
		bool last = file == b->notes->file_count;

		for (; segment < count && (last || segments[segment].start <= files[file].start);
		     segment++) {
			struct stall_error *err = add_mapping(b, &segments[segment]);
			if (err)
				return err;
		}
		if (last || files[file].start < end || files[file].end <= files[file].start ||
		    is_dumped(b, segment, files[file].start))
			continue;
		struct stall_core_segment missing = {
			.start = files[file].start,
			.end = files[file].end,
			.flags = PF_R | PF_X,
		};
		if (segment < count && segments[segment].start < missing.end)
			missing.end = segments[segment].start;
		end = missing.end;
		struct stall_error *err = add_mapping(b, &missing);
		if (err)
			return err;
	}
	return NULL;
}

static void maps_destroyp(struct stall_maps **maps)
{
	stall_maps_destroy(*maps);
}

struct stall_error *stall_core_maps_create(const struct stall_core_memory *memory,
					   const struct stall_core_notes *notes,
					   const struct stall_core_files *files,
					   struct stall_maps **ret, uint32_t *ret_main)
{
	_cleanup_(maps_destroyp) struct stall_maps *maps = calloc(1, sizeof(*maps));
	struct builder b = {
		.memory = memory,
		.notes = notes,
		.exe_fd = files->exe_fd,
		.vdso_fd = files->vdso_fd,
		.sysroot = files->sysroot,
		.maps = maps,
		.main = STALL_NO_MODULE,
	};

	if (!maps)
		return &stall_enomem;
	if (notes->file_count)
		qsort(notes->files, notes->file_count, sizeof(*notes->files), compare_files);
	struct stall_error *err = add_mappings(&b);
	stall_closep(&b.exe_fd);
	stall_closep(&b.vdso_fd);
	stall_hash_index_deinit(&b.by_place);
	if (err)
		return err;
	*ret = no_cleanup_ptr(maps);
	*ret_main = b.main;
	return NULL;
}

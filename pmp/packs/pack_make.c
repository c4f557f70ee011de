// SPDX-License-Identifier: Apache-2.0
#include "packs/pack_make.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "packs/dwarf_alt.h"
#include "packs/layouts.h"
#include "packs/pack_writer.h"
#include "proc/path_open.h"
#include "sandbox/untrusted.h"
#include "unwind/debug_file.h"
#include "unwind/symbols.h"

#define MEMORY_LIMIT ((size_t)12 << 30) // all sections of the largest server, unpacked: 2 GB
#define MAX_SECONDS 600			// of a processor; MariaDB 11.4 takes 10
#define DEADLINE_MS 1800000

struct making {
	const char *path;
	int fd; // of it
	char real[PATH_MAX];
	struct stall_search_dirs dirs;
	struct stall_elf *elf, *debug; // debug NULL: none is needed, or there is none
	char *debug_path;
	struct stall_symbols *symbols;
	struct stall_layouts layouts;
	struct stall_pack_summary summary;
};

static void making_deinit(struct making *making)
{
	stall_symbols_destroy(making->symbols);
	stall_elf_destroy(making->debug);
	stall_elf_destroy(making->elf);
	stall_layouts_deinit(&making->layouts);
	stall_search_dirs_deinit(&making->dirs);
	free(making->debug_path);
}

static bool has_symtab(const struct stall_elf *elf)
{
	return stall_elf_section_by_type(elf, SHT_SYMTAB);
}

// The file that layouts are read from.
static const struct stall_elf *debug_of(const struct making *making)
{
	return making->debug ? making->debug : making->elf;
}

static struct stall_error *open_files(struct making *making)
{
	struct stall_error *err = stall_elf_open(making->fd, &making->elf);
	if (err)
		return err;
	if (!stall_elf_identity(making->elf, making->summary.identity))
		return stall_error_create(STALL_ERROR_FORMAT,
					  "it has no build-id, and none of the program's code to "
					  "know it by: give the program itself, not stripped");
	if (!has_symtab(making->elf) || !stall_elf_section(making->elf, ".debug_info")) {
		err = stall_debug_file_open(&making->dirs, making->elf, making->real,
					    &making->debug, &making->debug_path);
	}
	if (making->debug_path)
		snprintf(making->summary.debug_file, sizeof(making->summary.debug_file), "%s",
			 making->debug_path);
	return err;
}

static void explain(struct making *making, const char *reason)
{
	snprintf(making->summary.layouts_missing, sizeof(making->summary.layouts_missing), "%s",
		 reason);
}

static void explain_layouts(struct making *making, bool lacks_alt)
{
	const struct stall_layouts *layouts = &making->layouts;

	making->summary.layouts = layouts->lines;
	making->summary.structures = layouts->structures;
	if (layouts->is_split)
		explain(making, "parts of the debugging information are in other files (.dwo, "
				".dwp), which are not read");
	else if (lacks_alt)
		explain(making, "parts of the debugging information are in a common file of dwz "
				"(.gnu_debugaltlink), which is not there");
	else if (layouts->is_incomplete)
		explain(making, "parts of the debugging information are damaged or too large");
}

// Layouts are an addition: without them the pack has its names.
static struct stall_error *read_layouts(struct making *making)
{
	const struct stall_elf *elf = debug_of(making);
	const char *path = making->debug ? making->debug_path : making->real;
	_cleanup_(stall_dwarf_destroyp) struct stall_dwarf *dwarf = NULL;
	_cleanup_(stall_dwarf_destroyp) struct stall_dwarf *alt = NULL;
	bool lacks_alt = false;

	struct stall_error *err = stall_dwarf_open(elf, &dwarf);
	if (!err && dwarf)
		err = stall_dwarf_alt_open(elf, path, &alt, &lacks_alt);
	if (!err && dwarf) {
		dwarf->alt = alt;
		err = stall_layouts_read(dwarf, &making->layouts);
	}
	if (err && err != &stall_enomem) {
		explain(making, err->message);
		stall_error_destroy(err);
		return NULL;
	}
	if (!err && !dwarf)
		explain(making, "the file has no debugging information");
	else if (!err)
		explain_layouts(making, lacks_alt);
	return err;
}

static uint8_t symbols_code(const char *source)
{
	if (!strcmp(source, ".symtab") || !strcmp(source, "separate"))
		return STALL_PACK_SYMTAB;
	return strcmp(source, ".gnu_debugdata") ? STALL_PACK_DYNSYM : STALL_PACK_MINIDEBUG;
}

static struct stall_error *add_symbol(void *arg, const struct stall_symbol_info *info)
{
	char name[STALL_PACK_MAX_LINKAGE + 1];
	size_t length = strnlen(info->linkage, sizeof(name));

	if (length == sizeof(name))
		return NULL;
	memcpy(name, info->linkage, length + 1);
	char *version = strchr(name, '@');
	if (version && version != name)
		*version = '\0';
	return stall_pack_writer_add(arg, name, info->address, info->size, info->info,
				     info->is_object);
}

static struct stall_error *write_pack(struct making *making, struct stall_output *output)
{
	_cleanup_(stall_pack_writer_destroyp) struct stall_pack_writer *writer = NULL;
	struct stall_pack_summary *summary = &making->summary;
	struct stall_pack_header header = {
		.machine = making->elf->machine,
		.symbols = symbols_code(stall_symbols_source(making->symbols)),
		.text_address = stall_elf_text_address(making->elf),
	};
	_cleanup_free_ char *path = strdup(making->path);
	const uint8_t *bytes = NULL;
	size_t size = 0;

	if (!path)
		return &stall_enomem;
	snprintf(header.name, sizeof(header.name), "%s", basename(path));
	memcpy(header.identity, summary->identity, sizeof(header.identity));
	struct stall_error *err = stall_pack_writer_create(&writer);
	if (!err)
		err = stall_symbols_each(making->symbols, add_symbol, writer);
	if (!err)
		err = stall_pack_writer_finish(writer, &header, making->layouts.text,
					       making->layouts.size, making->layouts.lines, &bytes,
					       &size);
	if (!err)
		err = stall_output_write(output, bytes, size);
	summary->symbols = header.symbols;
	summary->functions = header.function_count;
	summary->objects = header.object_count;
	summary->bytes = size;
	return err;
}

// In the sandbox.
static struct stall_error *make(void *arg, struct stall_output *output, void *ret_answer)
{
	struct making *making = arg;
	struct stall_error *err = open_files(making);

	if (!err)
		err = stall_symbols_create(making->elf, making->debug, NULL, &making->symbols);
	if (!err && !stall_symbols_count(making->symbols))
		err = stall_error_create(STALL_ERROR_FORMAT,
					 "it has no symbols, and no debug file of it was found: "
					 "give the debug file");
	if (!err)
		err = read_layouts(making);
	if (!err)
		err = write_pack(making, output);
	memcpy(ret_answer, &making->summary, sizeof(making->summary));
	return err;
}

static struct stall_error *open_program(void *arg)
{
	struct making *making = arg;
	const struct stall_path path = {.folder = AT_FDCWD, .name = making->path};
	struct stall_error *err = stall_path_open(&path, STALL_PATH_READ, &making->fd, NULL);

	if (err && err->errnum == EINVAL) {
		stall_error_destroy(err);
		return stall_error_create(STALL_ERROR_FORMAT, "not a regular file");
	}
	return err ? err : stall_path_real(&path, 0, making->real, sizeof(making->real));
}

// The child may have been taken over: nothing of it is used without a check.
static struct stall_error *check_summary(struct stall_pack_summary *summary)
{
	summary->identity[sizeof(summary->identity) - 1] = '\0';
	summary->debug_file[sizeof(summary->debug_file) - 1] = '\0';
	summary->layouts_missing[sizeof(summary->layouts_missing) - 1] = '\0';
	return stall_identity_is_valid(summary->identity)
		       ? NULL
		       : stall_error_create(STALL_ERROR_OTHER, "its identity is unreadable");
}

struct stall_error *stall_pack_make(const char *path, const char *debug_dir,
				    struct stall_output *output, struct stall_pack_summary *ret,
				    unsigned int *ret_missing)
{
	_cleanup_(making_deinit) struct making making = {.path = path, .fd = -1};
	const struct stall_untrusted work = {
		.path = path,
		.what = "program",
		.prepare = open_program,
		.run = make,
		.arg = &making,
		.answer_size = sizeof(*ret),
		.memory_limit = MEMORY_LIMIT,
		.cpu_seconds = MAX_SECONDS,
		.deadline_ms = DEADLINE_MS,
		.max_bytes = STALL_PACK_MAX_FILE,
	};

	_Static_assert(sizeof(*ret) <= STALL_UNTRUSTED_ANSWER, "an answer of a child");
	struct stall_error *err = stall_search_dirs_init(&making.dirs, &debug_dir,
							 debug_dir ? 1 : 0, STALL_DEBUG_DIR);
	if (!err)
		err = stall_untrusted_run(&work, output, ret, ret_missing);
	if (!err)
		err = check_summary(ret);
	if (!err || strncmp(err->message, path, strlen(path)) == 0)
		return err;
	struct stall_error *named = stall_error_create(err->code, "%s: %s", path, err->message);
	stall_error_destroy(err);
	return named;
}

// SPDX-License-Identifier: Apache-2.0
#include "packs/pack_make.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "packs/dwarf_alt.h"
#include "packs/layouts.h"
#include "packs/pack_writer.h"
#include "unwind/debug_file.h"
#include "unwind/sandbox.h"
#include "unwind/symbols.h"

#define MEMORY_LIMIT ((size_t)12 << 30) // all sections of the largest server, unpacked: 2 GB
#define MAX_SECONDS 600			// of a processor; MariaDB 11.4 takes 10
#define MAX_MESSAGE 1024

// What the child sends behind the pack.
struct verdict {
	bool failed;
	enum stall_error_code code;
	char message[MAX_MESSAGE];
	struct stall_pack_summary summary;
};

struct making {
	const char *path;
	struct stall_debug_dirs dirs;
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
	stall_debug_dirs_deinit(&making->dirs);
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
	char real[PATH_MAX];
	int fd = stall_open_file_at(AT_FDCWD, making->path);

	if (fd < 0 && errno == EINVAL)
		return stall_error_create(STALL_ERROR_FORMAT, "not a regular file");
	if (fd < 0)
		return stall_error_os(errno, "cannot read it");
	struct stall_error *err = stall_elf_open(fd, &making->elf);
	if (err)
		return err;
	if (!stall_elf_identity(making->elf, making->summary.identity))
		return stall_error_create(STALL_ERROR_FORMAT,
					  "it has no build-id, and none of the program's code to "
					  "know it by: give the program itself, not stripped");
	if (!has_symtab(making->elf) || !stall_elf_section(making->elf, ".debug_info")) {
		err = stall_debug_file_open(&making->dirs, making->elf,
					    realpath(making->path, real) ? real : NULL,
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
	const char *path = making->debug ? making->debug_path : making->path;
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

static struct stall_error *make(struct making *making, const char *debug_dir, int out)
{
	const struct stall_sandbox_options sandbox = {
		.keep_uid = true,
		.die_with_parent = true,
		.memory_limit = MEMORY_LIMIT,
	};
	const struct rlimit seconds = {MAX_SECONDS, MAX_SECONDS};
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;

	setrlimit(RLIMIT_CPU, &seconds);
	struct stall_error *err = stall_output_create_fd(out, &output);
	if (!err)
		err = stall_debug_dirs_init(&making->dirs, &debug_dir, debug_dir ? 1 : 0);
	if (!err)
		err = stall_sandbox_enter(&sandbox);
	if (!err)
		err = open_files(making);
	if (!err)
		err = stall_symbols_create(making->elf, making->debug, NULL, &making->symbols);
	if (err)
		return err;
	if (!stall_symbols_count(making->symbols))
		return stall_error_create(STALL_ERROR_FORMAT,
					  "it has no symbols, and no debug file of it was found: "
					  "give the debug file");
	err = read_layouts(making);
	return err ? err : write_pack(making, output);
}

static _Noreturn void child(const char *path, const char *debug_dir, int out, int verdicts,
			    pid_t parent)
{
	_cleanup_(making_deinit) struct making making = {.path = path};
	struct verdict verdict = {};

	struct stall_error *err = getppid() == parent ? make(&making, debug_dir, out) : NULL;
	if (err) {
		verdict.failed = true;
		verdict.code = err->code;
		strncpy(verdict.message, err->message, sizeof(verdict.message) - 1);
	}
	verdict.summary = making.summary;
	// Longer than what a pipe takes at once, and it has room: the parent reads.
	const char *bytes = (const char *)&verdict;
	for (size_t done = 0; done < sizeof(verdict);) {
		ssize_t n = write(verdicts, bytes + done, sizeof(verdict) - done);

		if (n < 0 && errno != EINTR)
			_exit(1);
		done += n > 0 ? (size_t)n : 0;
	}
	_exit(0);
}

// Reads to the end, at most `limit` bytes.
static struct stall_error *relay(int from, struct stall_output *output, uint64_t limit)
{
	char bytes[65536];

	for (uint64_t total = 0;;) {
		ssize_t got = read(from, bytes, sizeof(bytes));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return stall_error_os(errno, "cannot read from the child that makes it");
		if (got == 0)
			return NULL;
		total += (uint64_t)got;
		if (total > limit)
			return stall_error_create(STALL_ERROR_LIMIT, "its pack is too large");
		struct stall_error *err = stall_output_write(output, bytes, (size_t)got);
		if (err)
			return err;
	}
}

// The child may have been taken over: nothing of it is used without a check.
static struct stall_error *read_verdict(int verdicts, const char *path,
					struct stall_pack_summary *ret)
{
	struct verdict verdict;
	size_t done = 0;

	while (done < sizeof(verdict)) {
		ssize_t n = read(verdicts, (char *)&verdict + done, sizeof(verdict) - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return stall_error_create(STALL_ERROR_OTHER,
						  "%s: the child that read it died; the file may "
						  "be hostile, or memory is missing",
						  path);
		done += (size_t)n;
	}
	verdict.message[sizeof(verdict.message) - 1] = '\0';
	if (verdict.failed)
		return stall_error_create(verdict.code, "%s: %s", path, verdict.message);
	struct stall_pack_summary *summary = &verdict.summary;
	summary->identity[sizeof(summary->identity) - 1] = '\0';
	summary->debug_file[sizeof(summary->debug_file) - 1] = '\0';
	summary->layouts_missing[sizeof(summary->layouts_missing) - 1] = '\0';
	if (!stall_identity_is_valid(summary->identity))
		return stall_error_create(STALL_ERROR_OTHER, "%s: its identity is unreadable",
					  path);
	*ret = *summary;
	return NULL;
}

struct stall_error *stall_pack_make(const char *path, const char *debug_dir,
				    struct stall_output *output, struct stall_pack_summary *ret)
{
	int packs[2], verdicts[2];

	if (pipe2(packs, O_CLOEXEC) < 0)
		return stall_error_os(errno, "pipe");
	_cleanup_close_ int pack_in = packs[0], pack_out = packs[1];
	if (pipe2(verdicts, O_CLOEXEC) < 0)
		return stall_error_os(errno, "pipe");
	_cleanup_close_ int verdict_in = verdicts[0], verdict_out = verdicts[1];
	pid_t parent = getpid(), pid = fork();
	if (pid < 0)
		return stall_error_os(errno, "fork");
	if (pid == 0)
		child(path, debug_dir, pack_out, verdict_out, parent);
	close(pack_out);
	close(verdict_out);
	pack_out = verdict_out = -1;
	// The child closes its end of the pack only when it ends: the verdict is in the pipe then.
	struct stall_error *err = relay(pack_in, output, STALL_PACK_MAX_FILE);
	if (err)
		kill(pid, SIGKILL);
	else
		err = read_verdict(verdict_in, path, ret);
	waitpid(pid, NULL, 0);
	return err;
}

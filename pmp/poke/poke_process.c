// SPDX-License-Identifier: Apache-2.0
#include "poke/poke_process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "snapshot/maps.h"

#define MAX_MAPPINGS 1000000
#define DELETED " (deleted)"

// Calls `visit` with each mapping until it returns true.
typedef bool (*visit_fn)(const struct stall_maps_line *line, void *arg);

static struct stall_error *walk_maps(const struct stall_target *target, visit_fn visit, void *arg)
{
	int fd = openat(target->procfd, "maps", O_RDONLY | O_CLOEXEC);
	_cleanup_fclose_ FILE *file = fd < 0 ? NULL : fdopen(fd, "re");
	_cleanup_free_ char *text = NULL;
	size_t capacity = 0;
	ssize_t size;

	if (!file) {
		int errnum = errno;

		if (fd >= 0)
			close(fd);
		return stall_error_os(errnum, "cannot read /proc/%d/maps", target->pid);
	}
	for (int i = 0; i < MAX_MAPPINGS && (size = getline(&text, &capacity, file)) > 0; i++) {
		struct stall_maps_line line;

		if (stall_maps_line_parse(text, size - 1, &line) && visit(&line, arg))
			return NULL;
	}
	if (ferror(file))
		return stall_error_os(errno, "cannot read /proc/%d/maps", target->pid);
	return NULL;
}

struct program_search {
	const char *exe; // as the link of /proc/PID/exe: with " (deleted)" where it has that
	uint64_t base;
};

static bool is_program(const struct stall_maps_line *line, void *arg)
{
	struct program_search *search = arg;

	if (line->offset || line->path_size != strlen(search->exe) ||
	    memcmp(line->path, search->exe, line->path_size))
		return false;
	search->base = line->start;
	return true;
}

static struct stall_error *read_program(struct stall_poke_process *process)
{
	const struct stall_target *target = &process->target;
	char *exe = process->exe;
	ssize_t size = readlinkat(target->procfd, "exe", exe, sizeof(process->exe) - 1);

	if (size < 0)
		return stall_error_os(errno, "cannot read /proc/%d/exe", target->pid);
	exe[size] = 0;
	struct program_search search = {.exe = exe};
	struct stall_error *err = walk_maps(target, is_program, &search);
	if (err)
		return err;
	if (!search.base)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "the beginning of its program is not in the memory of "
					  "process %d: its build cannot be checked",
					  target->pid);
	process->identity.base = search.base;
	if ((size_t)size > strlen(DELETED) && !strcmp(exe + size - strlen(DELETED), DELETED))
		exe[size - strlen(DELETED)] = 0;
	return NULL;
}

static struct stall_error *read_head(struct stall_poke_process *process)
{
	struct iovec local = {process->head, sizeof(process->head)};
	struct iovec remote = {(void *)(uintptr_t)process->identity.base, sizeof(process->head)};
	ssize_t size = process_vm_readv(process->target.pid, &local, 1, &remote, 1, 0);
	struct stall_sha256 hash;

	if (size < 0)
		return stall_error_os(errno, "cannot read the memory of process %d",
				      process->target.pid);
	if (size != sizeof(process->head))
		return stall_error_create(STALL_ERROR_FORMAT,
					  "the program of process %d is shorter than %d bytes",
					  process->target.pid, STALL_POKE_HEAD);
	stall_sha256_init(&hash);
	stall_sha256_add(&hash, process->head, sizeof(process->head));
	stall_sha256_finish(&hash, process->identity.head);
	return NULL;
}

// Field 28, which the kernel shows only to those who may read the process. (The second, in
// parentheses, is the name. Linux man-pages, proc_pid_stat(5).)
static struct stall_error *read_stat(struct stall_poke_process *process)
{
	char text[1024];
	_cleanup_close_ int fd = openat(process->target.procfd, "stat", O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	text[size > 0 ? size : 0] = 0;
	const char *at = strrchr(text, ')');
	if (!at || sscanf(at + 1, " %c", &process->state) != 1)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended",
					  process->target.pid);
	for (int field = 2; at && field < 28; field++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	if (!at || sscanf(at, "%" SCNu64, &process->identity.start_stack) != 1)
		process->identity.start_stack = 0;
	return NULL;
}

static struct stall_error *read_identity(struct stall_poke_process *process)
{
	const struct stall_target *target = &process->target;
	struct stall_error *err;

	if (target->pidfd < 0)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "this kernel has no pidfd_open: process %d cannot be "
					  "held, so it is not changed",
					  target->pid);
	if (target->reader != target->pid)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "the main thread of process %d has ended: it is not "
					  "changed",
					  target->pid);
	process->identity.start_time = target->start_time;
	err = read_program(process);
	if (!err)
		err = read_head(process);
	if (!err)
		err = read_stat(process);
	return err ? err : stall_target_check(target);
}

struct stall_error *stall_poke_process_init(struct stall_poke_process *process, pid_t pid)
{
	struct stall_error *err;

	*process = (struct stall_poke_process){};
	err = stall_target_init(&process->target, pid);
	if (err)
		return err;
	err = read_identity(process);
	if (err)
		stall_poke_process_deinit(process);
	return err;
}

void stall_poke_process_deinit(struct stall_poke_process *process)
{
	stall_target_deinit(&process->target);
}

struct stall_error *stall_poke_identity_parse(const char *text, struct stall_poke_identity *ret)
{
	struct stall_poke_identity parsed = {};
	int end = 0;

	if (sscanf(text, "%" SCNu64 ":%" SCNu64 ":%" SCNu64 ":%64[0-9a-f]%n", &parsed.start_time,
		   &parsed.start_stack, &parsed.base, parsed.head, &end) != 4 ||
	    text[end] || strlen(parsed.head) != STALL_SHA256_TEXT - 1)
		return stall_error_create(STALL_ERROR_USAGE,
					  "--process \"%.60s\": not "
					  "START-TIME:START-STACK:BASE:SHA256",
					  text);
	*ret = parsed;
	return NULL;
}

struct stall_error *stall_poke_identity_check(const struct stall_poke_process *process,
					      const struct stall_poke_identity *expected)
{
	const struct stall_poke_identity *is = &process->identity;
	pid_t pid = process->target.pid;

	if (is->start_time != expected->start_time)
		return stall_error_create(STALL_ERROR_NO_PROCESS,
					  "process %d is another one: it started later than that "
					  "which the poke is for",
					  pid);
	if (is->base != expected->base || strcmp(is->head, expected->head) ||
	    (is->start_stack && expected->start_stack && is->start_stack != expected->start_stack))
		return stall_error_create(STALL_ERROR_NO_PROCESS,
					  "process %d has executed a program since the poke was "
					  "prepared: it is another one now",
					  pid);
	return NULL;
}

struct range_search {
	uint64_t address, size;
	struct stall_poke_mapping found;
};

static bool holds(const struct stall_maps_line *line, void *arg)
{
	struct range_search *search = arg;

	if (search->address < line->start || search->address >= line->end ||
	    search->size > line->end - search->address)
		return false;
	search->found = (struct stall_poke_mapping){
		.start = line->start,
		.end = line->end,
		.writable = line->writable,
		.shared = line->shared,
	};
	return true;
}

struct stall_error *stall_poke_mapping_find(const struct stall_target *target, uint64_t address,
					    uint64_t size, struct stall_poke_mapping *ret)
{
	struct range_search search = {.address = address, .size = size};
	struct stall_error *err = walk_maps(target, holds, &search);

	if (err)
		return err;
	if (!search.found.end)
		return stall_error_create(STALL_ERROR_FORMAT,
					  "process %d has no memory at 0x%" PRIx64, target->pid,
					  address);
	*ret = search.found;
	return NULL;
}

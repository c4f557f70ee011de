// SPDX-License-Identifier: Apache-2.0
#include "poke/poke_process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proc/maps_line.h"

#define MAX_MAPPINGS 1000000
#define DELETED " (deleted)"
#define MAX_AUXV 64
#define RANDOM_BYTES 16 // at AT_RANDOM: getauxval(3)

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

static struct stall_error *another_program(pid_t pid)
{
	return stall_error_create(STALL_ERROR_NO_PROCESS,
				  "process %d has executed a program since the poke was prepared: "
				  "it is another one now",
				  pid);
}

// Whether the process and the memory that is held are still there.
static struct stall_error *check_held(const struct stall_poke_process *process)
{
	struct stall_error *err = stall_target_check(&process->target);
	char byte;

	if (err)
		return err;
	// 0 bytes where nobody has the memory any more; an error where it has nothing at that address.
	return pread(process->memory, &byte, 1, 0) == 0 ? another_program(process->target.pid)
							: NULL;
}

static struct stall_error *transferred(const struct stall_poke_process *process, uint64_t address,
				       ssize_t done, size_t size, const char *what)
{
	int errnum = done < 0 ? errno : EFAULT;

	if (done == (ssize_t)size)
		return NULL;
	struct stall_error *err = check_held(process);
	return err ? err
		   : stall_error_os(errnum, "cannot %s the memory of process %d at 0x%" PRIx64,
				    what, process->target.pid, address);
}

struct stall_error *stall_poke_memory_read(const struct stall_poke_process *process,
					   uint64_t address, void *buf, size_t size)
{
	ssize_t done = pread(process->memory, buf, size, (off_t)address);

	return transferred(process, address, done, size, "read");
}

struct stall_error *stall_poke_memory_write(const struct stall_poke_process *process,
					    uint64_t address, const void *buf, size_t size)
{
	ssize_t done = pwrite(process->memory, buf, size, (off_t)address);

	return transferred(process, address, done, size, "write to");
}

static struct stall_error *read_program(const struct stall_poke_process *process,
					struct stall_poke_program *program, uint64_t *ret_base)
{
	const struct stall_target *target = &process->target;
	char *exe = program->exe;
	ssize_t size = readlinkat(target->procfd, "exe", exe, sizeof(program->exe) - 1);

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
	*ret_base = search.base;
	if ((size_t)size > strlen(DELETED) && !strcmp(exe + size - strlen(DELETED), DELETED))
		exe[size - strlen(DELETED)] = 0;
	return NULL;
}

static void hash(const void *data, size_t size, char *ret)
{
	struct stall_sha256 state;

	stall_sha256_init(&state);
	stall_sha256_add(&state, data, size);
	stall_sha256_finish(&state, ret);
}

// "" where the kernel does not say where they are: not to a supervisor of another user's server, which
// has CAP_SYS_PTRACE alone, and is sure of the run by the memory that it was given. A hash, since they
// are the server's secret: its stack protector is made of them.
static struct stall_error *read_run(const struct stall_poke_process *process, char *ret)
{
	uint64_t entries[2 * MAX_AUXV], address = 0;
	uint8_t bytes[RANDOM_BYTES];
	_cleanup_close_ int fd = openat(process->target.procfd, "auxv", O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? 0 : read(fd, entries, sizeof(entries));

	for (ssize_t i = 0; i + 1 < size / (ssize_t)sizeof(*entries); i += 2)
		if (entries[i] == AT_RANDOM)
			address = entries[i + 1];
	ret[0] = 0;
	if (!address)
		return NULL;
	struct stall_error *err = stall_poke_memory_read(process, address, bytes, sizeof(bytes));
	if (!err)
		hash(bytes, sizeof(bytes), ret);
	return err;
}

// Field 28, which the kernel shows only to those who may read the process. (The second, in
// parentheses, is the name. Linux man-pages, proc_pid_stat(5).)
static struct stall_error *read_stat(const struct stall_poke_process *process, char *ret_state,
				     uint64_t *ret_start_stack)
{
	char text[1024];
	_cleanup_close_ int fd = openat(process->target.procfd, "stat", O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	text[size > 0 ? size : 0] = 0;
	const char *at = strrchr(text, ')');
	if (!at || sscanf(at + 1, " %c", ret_state) != 1)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended",
					  process->target.pid);
	for (int field = 2; at && field < 28; field++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	if (!at || sscanf(at, "%" SCNu64, ret_start_stack) != 1)
		*ret_start_stack = 0;
	return NULL;
}

// What /proc/PID shows is of what the pid runs at that moment: the memory is read last, which says
// that it was this run all the time.
static struct stall_error *read_identity(const struct stall_poke_process *process,
					 struct stall_poke_program *program,
					 struct stall_poke_identity *ret)
{
	struct stall_poke_identity identity = {.start_time = process->target.start_time};
	struct stall_error *err = read_program(process, program, &identity.base);

	if (!err)
		err = read_stat(process, &program->state, &identity.start_stack);
	if (!err)
		err = read_run(process, identity.run);
	if (!err)
		err = stall_poke_memory_read(process, identity.base, program->head,
					     sizeof(program->head));
	// What fails does so because it has ended, or is about to execute a program.
	struct stall_error *gone = check_held(process);
	if (gone) {
		stall_error_destroy(err);
		return gone;
	}
	if (err)
		return err;
	hash(program->head, sizeof(program->head), identity.head);
	*ret = identity;
	return NULL;
}

// As the kernel does without capabilities. (A process that may not be dumped counts as root's.)
static struct stall_error *check_owner(const struct stall_target *target)
{
	struct stat st;

	if (geteuid() == 0)
		return NULL;
	if (fstat(target->procfd, &st) < 0)
		return stall_error_os(errno, "/proc/%d", target->pid);
	if (st.st_uid == geteuid())
		return NULL;
	return stall_error_create(STALL_ERROR_PERMISSION,
				  "permission denied: process %d belongs to user %u: only root, or "
				  "that user, may do this",
				  target->pid, st.st_uid);
}

static struct stall_error *check_target(const struct stall_target *target)
{
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
	return check_owner(target);
}

static struct stall_error *open_memory(struct stall_poke_process *process, bool writes)
{
	int fd = openat(process->target.procfd, "mem", (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);

	if (fd < 0)
		return stall_error_os(errno,
				      "cannot open the memory of process %d (needs its user, or "
				      "CAP_SYS_PTRACE and CAP_DAC_OVERRIDE)",
				      process->target.pid);
	process->memory = fd;
	return NULL;
}

struct stall_error *stall_poke_process_init(struct stall_poke_process *process, pid_t pid,
					    bool writes, struct stall_poke_program *ret_program)
{
	struct stall_error *err;

	*process = (struct stall_poke_process){.memory = -1};
	err = stall_target_init(&process->target, pid);
	if (err)
		return err;
	err = check_target(&process->target);
	if (!err)
		err = open_memory(process, writes);
	if (!err)
		err = read_identity(process, ret_program, &process->identity);
	if (err)
		stall_poke_process_deinit(process);
	return err;
}

void stall_poke_process_deinit(struct stall_poke_process *process)
{
	if (process->memory >= 0)
		close(process->memory);
	process->memory = -1;
	stall_target_deinit(&process->target);
}

struct stall_error *stall_poke_process_check(const struct stall_poke_process *process)
{
	struct stall_poke_process now = *process;
	struct stall_poke_program program;
	struct stall_error *err = read_identity(&now, &program, &now.identity);

	return err ? err : stall_poke_identity_check(&now, &process->identity);
}

struct stall_error *stall_poke_identity_parse(const char *text, struct stall_poke_identity *ret)
{
	struct stall_poke_identity parsed = {};
	int end = 0;

	if (sscanf(text, "%" SCNu64 ":%" SCNu64 ":%" SCNu64 ":%64[0-9a-f]%n:%64[0-9a-f]%n",
		   &parsed.start_time, &parsed.start_stack, &parsed.base, parsed.head, &end,
		   parsed.run, &end) < 4 ||
	    text[end] || strlen(parsed.head) != STALL_SHA256_TEXT - 1 ||
	    (parsed.run[0] && strlen(parsed.run) != STALL_SHA256_TEXT - 1))
		return stall_error_create(STALL_ERROR_USAGE,
					  "--process \"%.60s\": not "
					  "START-TIME:START-STACK:BASE:SHA256:SHA256",
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
	    (is->start_stack && expected->start_stack &&
	     is->start_stack != expected->start_stack) ||
	    (is->run[0] && expected->run[0] && strcmp(is->run, expected->run)))
		return another_program(pid);
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

struct stall_error *stall_poke_mapping_find(const struct stall_poke_process *process,
					    uint64_t address, uint64_t size,
					    struct stall_poke_mapping *ret)
{
	const struct stall_target *target = &process->target;
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

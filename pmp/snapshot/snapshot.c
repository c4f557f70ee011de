// SPDX-License-Identifier: Apache-2.0
#include "snapshot/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "proc/paths.h"
#include "proc/proc_file.h"
#include "proc/read_child.h"
#include "snapshot/open_files.h"

#define SYS_FUTEX_WAIT 455 // since Linux 6.7: (uaddr, val, mask, flags, timeout, clockid)
#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

const char *stall_label_name(enum stall_label label)
{
	static const char *const names[] = {
		[STALL_VERIFIED] = "verified",
		[STALL_RACED] = "raced",
		[STALL_RUNNING] = "running",
		[STALL_TRUNCATED] = "truncated",
	};

	return names[label];
}

const char *stall_label_reason_name(enum stall_label_reason reason)
{
	static const char *const names[] = {
		[STALL_REASON_LIVE_READS] = "live-reads",
		[STALL_REASON_VFORK] = "vfork",
		[STALL_REASON_EXEC] = "exec",
		[STALL_REASON_EXIT] = "exit",
		[STALL_REASON_32BIT] = "32-bit",
	};

	return names[reason];
}

void stall_snapshot_options_init(struct stall_snapshot_options *options)
{
	*options = (struct stall_snapshot_options){
		.max_stack = STALL_DEFAULT_MAX_STACK,
		.max_threads = STALL_DEFAULT_MAX_THREADS,
		.passes = STALL_DEFAULT_PASSES,
		.deadline_ms = STALL_DEFAULT_DEADLINE_MS,
		.kernel_stacks = true,
	};
}

// The field of /proc/PID/stat by its number in proc_pid_stat(5), counted from the state, field 3.
static struct stall_error *read_stat(struct stall_process *process)
{
	const struct stall_target *target = &process->target;
	struct stall_proc_stat stat;
	int errnum = stall_proc_stat_read(target, target->reader, &stat);

	if (errnum == ESRCH || errnum == ENOENT)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended",
					  target->pid);
	if (errnum)
		return stall_error_os(errnum, "cannot read /proc/%d/stat", target->pid);
	memcpy(process->comm, stat.comm, sizeof(process->comm));
	process->ppid = stat.ppid;
	process->start_stack = stat.start_stack;
	process->start_brk = stat.start_brk;
	return NULL;
}

struct stall_error *stall_process_changed_error(const struct stall_process *process)
{
	// Not NO_PROCESS: it still exists, and a serving probe captures it again.
	return stall_error_create(
		STALL_ERROR_AGAIN,
		"process %d (%s) executed another program during the capture: capture it again",
		process->target.pid, process->comm);
}

static bool is_same_program(const struct stall_process *one, const struct stall_process *other)
{
	return one->start_stack == other->start_stack && one->start_brk == other->start_brk;
}

struct stall_error *stall_process_check(const struct stall_process *process)
{
	struct stall_process now = {.target = process->target};
	struct stall_error *err = stall_target_check(&process->target);

	if (!err)
		err = read_stat(&now);
	if (err || !process->start_stack || !now.start_stack)
		return err;
	return is_same_program(process, &now) ? NULL : stall_process_changed_error(process);
}

static struct stall_error *read_exe(struct stall_process *process)
{
	char path[PATH_MAX + 16];

	// Needs ptrace access; reading the maps returns that error.
	if (!stall_proc_link_inside(&process->target, "exe", path, sizeof(path)))
		return NULL;
	process->exe_deleted = stall_path_cut_deleted(path);
	process->exe = strdup(path);
	return process->exe ? NULL : &stall_enomem;
}

static struct stall_maps *previous_maps(struct stall_snapshot *previous,
					const struct stall_target *target)
{
	for (size_t i = 0; previous && i < previous->process_count; i++) {
		const struct stall_process *process = &previous->processes[i];

		if (process->target.pid == target->pid &&
		    process->target.start_time == target->start_time)
			return process->maps;
	}
	return NULL;
}

static bool is_repeated(const pid_t *pids, size_t i)
{
	for (size_t j = 0; j < i; j++) {
		if (pids[j] == pids[i])
			return true;
	}
	return false;
}

bool stall_snapshot_is_late(const struct stall_snapshot *snapshot, uint32_t process)
{
	return stall_late_reads_since(&snapshot->processes[process].target, snapshot->begun_ns);
}

// What could not be read in the files of modules is noted once per file, since names and frames
// from it will be missing.
static struct stall_error *note_modules(struct stall_snapshot *snapshot,
					const struct stall_process *process)
{
	const struct stall_maps *maps = process->maps;

	if (maps->modules_lost) {
		struct stall_error *err =
			stall_snapshot_note(snapshot, "modules-limit",
					    "process %d has %zu more code mappings than the limit "
					    "of %d: frames in them stay unnamed",
					    process->target.pid, maps->modules_lost,
					    STALL_MAX_MODULES);
		if (err)
			return err;
	}
	for (size_t i = 0; i < maps->module_count; i++) {
		const struct stall_module *module = &maps->modules[i];

		if (!module->error || module->shared)
			continue;
		// Only the vdso is read from the memory that is out of reach.
		if (!module->ino &&
		    stall_snapshot_is_late(snapshot, (uint32_t)(process - snapshot->processes)))
			continue;
		struct stall_error *err =
			stall_snapshot_note(snapshot, "module-unreadable",
					    "%s of process %d cannot be opened: %s", module->path,
					    process->target.pid, module->error);
		if (err)
			return err;
	}
	return NULL;
}

static void process_deinit(struct stall_process *process)
{
	stall_target_deinit(&process->target);
	stall_maps_destroy(process->maps);
	free(process->exe);
	*process = (struct stall_process){};
}

static struct stall_error *create_maps(void *arg, const struct stall_target *target,
				       struct stall_maps *previous, struct stall_open_files *files,
				       struct stall_maps **ret)
{
	return stall_maps_create(target, previous, files, ret);
}

// The mappings cannot be read now. Those of the previous capture are valid, except for new
// mappings. Without any, threads only have registers and the kernel's data.
static struct stall_error *do_without_maps(struct stall_process *process,
					   struct stall_snapshot *previous)
{
	for (size_t i = 0; previous && i < previous->process_count; i++) {
		struct stall_process *old = &previous->processes[i];

		if (!old->maps || old->maps != previous_maps(previous, &process->target) ||
		    !is_same_program(old, process))
			continue;
		process->maps = no_cleanup_ptr(old->maps);
		return NULL;
	}
	process->maps = calloc(1, sizeof(*process->maps));
	return process->maps ? NULL : &stall_enomem;
}

static struct stall_error *add_process(struct stall_snapshot *snapshot, pid_t pid,
				       struct stall_snapshot *previous,
				       const struct stall_maps_source *source,
				       struct stall_open_files *files)
{
	struct stall_process *process = &snapshot->processes[snapshot->process_count];
	struct stall_error *err = stall_target_init(&process->target, pid);

	if (err)
		return err;
	snapshot->process_count++; // from here on destroy frees it
	err = read_stat(process);
	if (!err)
		err = read_exe(process);
	if (!err)
		err = source->create(source->arg, &process->target,
				     previous_maps(previous, &process->target), files,
				     &process->maps);
	// Files are opened by the addresses at which they are mapped: had another program been there
	// by then, later captures would take its files for those of this one.
	if (!err && source->create == create_maps)
		err = stall_process_check(process);
	if (err && err->code == STALL_ERROR_LATE) {
		stall_error_destroy(err);
		err = do_without_maps(process, previous);
	}
	return err ? err : note_modules(snapshot, process);
}

// Of several processes, those that have ended are left out: a server's connections come and go.
static struct stall_error *skip_ended(struct stall_snapshot *snapshot, size_t count_before,
				      struct stall_error *reason)
{
	struct stall_error *err =
		stall_snapshot_note(snapshot, "process-lost", "%s", reason->message);

	stall_error_destroy(reason);
	if (snapshot->process_count > count_before) {
		process_deinit(&snapshot->processes[count_before]);
		snapshot->process_count = count_before;
	}
	return err;
}

struct stall_error *stall_snapshot_create(struct stall_arena *arena, const pid_t *pids,
					  size_t count, struct stall_snapshot *previous,
					  struct stall_snapshot **ret)
{
	static const struct stall_maps_source source = {.create = create_maps};

	return stall_snapshot_create_from(arena, pids, count, previous, &source, ret);
}

struct stall_error *stall_snapshot_create_from(struct stall_arena *arena, const pid_t *pids,
					       size_t count, struct stall_snapshot *previous,
					       const struct stall_maps_source *source,
					       struct stall_snapshot **ret)
{
	struct stall_snapshot *snapshot = calloc(1, sizeof(*snapshot));
	struct stall_open_files files = {};
	struct timespec now;

	if (!snapshot)
		return &stall_enomem;
	clock_gettime(CLOCK_REALTIME, &now);
	snapshot->wall_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	snapshot->begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	snapshot->arena = arena;
	snapshot->processes = calloc(count, sizeof(*snapshot->processes));
	struct stall_error *err = snapshot->processes ? NULL : &stall_enomem;
	for (size_t i = 0; !err && i < count; i++) {
		size_t before = snapshot->process_count;

		if (is_repeated(pids, i))
			continue;
		err = add_process(snapshot, pids[i], previous, source, &files);
		if (err && err->code == STALL_ERROR_NO_PROCESS && count > 1)
			err = skip_ended(snapshot, before, err);
	}
	stall_open_files_deinit(&files);
	if (!err && !snapshot->process_count)
		err = stall_error_create(STALL_ERROR_NO_PROCESS,
					 "none of the processes runs any more");
	if (err) {
		stall_snapshot_destroy(snapshot);
		return err;
	}
	*ret = snapshot;
	return NULL;
}

struct stall_error *stall_snapshot_follow(struct stall_snapshot *before,
					  struct stall_snapshot **ret)
{
	for (size_t i = 0; i < before->process_count; i++) {
		struct stall_error *err = stall_process_check(&before->processes[i]);

		if (err)
			return err;
	}
	struct stall_snapshot *snapshot = calloc(1, sizeof(*snapshot));

	if (!snapshot)
		return &stall_enomem;
	snapshot->arena = before->arena;
	snapshot->begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	snapshot->processes = no_cleanup_ptr(before->processes);
	snapshot->process_count = before->process_count;
	before->process_count = 0;
	for (size_t i = 0; i < snapshot->process_count; i++)
		snapshot->processes[i].threads_lost = 0;
	snapshot->before = before;
	snapshot->moment = before->moment + 1;
	*ret = snapshot;
	return NULL;
}

bool stall_snapshot_seek(const struct stall_snapshot *snapshot, size_t *at, uint32_t process,
			 pid_t tid)
{
	while (*at < snapshot->thread_count &&
	       stall_thread_order(&snapshot->threads[*at], process, tid) < 0)
		++*at;
	return *at < snapshot->thread_count &&
	       stall_thread_order(&snapshot->threads[*at], process, tid) == 0;
}

void stall_snapshot_forget_threads(struct stall_snapshot *snapshot)
{
	free(snapshot->threads);
	free(snapshot->releases);
	free(snapshot->futexes);
	snapshot->threads = NULL;
	snapshot->releases = NULL;
	snapshot->futexes = NULL;
	snapshot->thread_count = snapshot->release_count = snapshot->futex_count = 0;
	snapshot->samples = (struct stall_samples){};
}

void stall_snapshot_destroy(struct stall_snapshot *snapshot)
{
	if (!snapshot)
		return;
	stall_snapshot_forget_threads(snapshot);
	for (size_t i = 0; i < snapshot->process_count; i++)
		process_deinit(&snapshot->processes[i]);
	for (size_t i = 0; i < snapshot->note_count; i++)
		free(snapshot->notes[i].message);
	free(snapshot->notes);
	free(snapshot->processes);
	free(snapshot->backend_reason);
	if (snapshot->memory.destroy)
		snapshot->memory.destroy(snapshot->memory.arg);
	free(snapshot);
}

struct stall_error *stall_snapshot_note(struct stall_snapshot *snapshot, const char *code,
					const char *format, ...)
{
	va_list args;
	char *message;
	int rc;

	if (!stall_array_resize(&snapshot->notes, snapshot->note_count + 1))
		return &stall_enomem;
	va_start(args, format);
	rc = vasprintf(&message, format, args);
	va_end(args);
	if (rc < 0)
		return &stall_enomem;
	snapshot->notes[snapshot->note_count++] = (struct stall_note){code, message};
	return NULL;
}

uint64_t stall_thread_futex(const struct stall_thread *thread)
{
	if (!thread->in_syscall)
		return 0;
	if (thread->syscall == SYS_FUTEX_WAIT)
		return thread->args[0];
	if (thread->syscall != SYS_futex)
		return 0;
	switch ((int)thread->args[1] & FUTEX_CMD_MASK) { // 32 bits count in the kernel
	case FUTEX_WAIT:
	case FUTEX_WAIT_BITSET:
	case FUTEX_LOCK_PI:
	case FUTEX_LOCK_PI2:
	case FUTEX_WAIT_REQUEUE_PI:
		return thread->args[0];
	default:
		return 0;
	}
}

static int compare_futexes(const void *a, const void *b)
{
	const struct stall_futex *x = a, *y = b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	return (x->address > y->address) - (x->address < y->address);
}

// The distinct words that threads wait on, sorted.
static struct stall_error *collect_futexes(const struct stall_snapshot *snapshot,
					   struct stall_futex **ret, size_t *ret_count)
{
	struct stall_futex *futexes = calloc(snapshot->thread_count + 1, sizeof(*futexes));
	size_t count = 0, distinct = 0;

	if (!futexes)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		uint64_t address = stall_thread_futex(&snapshot->threads[i]);

		if (address < STALL_FUTEX_BEFORE || address > UINT64_MAX - STALL_FUTEX_AFTER)
			continue;
		futexes[count].process = snapshot->threads[i].process;
		futexes[count++].address = address;
	}
	qsort(futexes, count, sizeof(*futexes), compare_futexes);
	for (size_t i = 0; i < count; i++) {
		if (!distinct || compare_futexes(&futexes[distinct - 1], &futexes[i]))
			futexes[distinct++] = futexes[i];
	}
	*ret = futexes;
	*ret_count = distinct;
	return NULL;
}

static void read_words_of_core(const struct stall_snapshot *snapshot, struct stall_futex *futexes,
			       size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct stall_futex *futex = &futexes[i];

		futex->readable =
			stall_snapshot_read(snapshot, futex->process,
					    futex->address - STALL_FUTEX_BEFORE, futex->bytes,
					    sizeof(futex->bytes)) == sizeof(futex->bytes);
	}
}

static struct stall_error *read_words(const struct stall_snapshot *snapshot,
				      struct stall_futex *futexes, size_t count)
{
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, sizeof(*reads));

	if (!reads)
		return &stall_enomem;
	if (snapshot->memory.read) {
		read_words_of_core(snapshot, futexes, count);
		return NULL;
	}
	for (size_t first = 0; first < count;) {
		uint32_t process = futexes[first].process;
		size_t n = 0;

		for (; first + n < count && futexes[first + n].process == process; n++)
			reads[n] = (struct stall_read){
				.address = futexes[first + n].address - STALL_FUTEX_BEFORE,
				.buf = futexes[first + n].bytes,
				.size = sizeof(futexes[first + n].bytes),
			};
		struct stall_error *err =
			stall_read_child_memory(&snapshot->processes[process].target, reads, n);
		// Nothing was read.
		if (err && (err->code == STALL_ERROR_NO_PROCESS || err->code == STALL_ERROR_LATE)) {
			stall_error_destroy(err);
			err = NULL;
		}
		if (err)
			return err;
		for (size_t i = 0; i < n; i++)
			futexes[first + i].readable = reads[i].done == reads[i].size;
		first += n;
	}
	return NULL;
}

struct stall_error *stall_snapshot_read_futexes(struct stall_snapshot *snapshot)
{
	_cleanup_free_ struct stall_futex *futexes = NULL;
	size_t count = 0;
	struct stall_error *err = collect_futexes(snapshot, &futexes, &count);

	if (!err)
		err = read_words(snapshot, futexes, count);
	if (err)
		return err;
	for (size_t i = 0; snapshot->futexes && i < count; i++) {
		const struct stall_futex *before =
			bsearch(&futexes[i], snapshot->futexes, snapshot->futex_count,
				sizeof(*futexes), compare_futexes);

		if (!before || !before->readable || !futexes[i].readable)
			continue;
		futexes[i].read_twice = true;
		memcpy(futexes[i].first, before->bytes, sizeof(before->bytes));
		futexes[i].stable = !memcmp(before->bytes, futexes[i].bytes, sizeof(before->bytes));
	}
	free(snapshot->futexes);
	snapshot->futexes = no_cleanup_ptr(futexes);
	snapshot->futex_count = count;
	return NULL;
}

uint64_t stall_stack_end(const struct stall_maps *maps, uint64_t sp, uint64_t fs_base)
{
	const struct stall_mapping *mapping = stall_maps_find(maps, sp);

	if (!mapping || !mapping->readable)
		return sp;
	return fs_base > sp && fs_base < mapping->end ? fs_base : mapping->end;
}

static void drop_threads(struct stall_snapshot *snapshot, uint32_t process)
{
	size_t kept = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++) {
		if (snapshot->threads[i].process == process)
			continue;
		if (kept != i)
			snapshot->threads[kept] = snapshot->threads[i];
		kept++;
	}
	snapshot->processes[process].threads_lost += snapshot->thread_count - kept;
	snapshot->processes[process].thread_count = 0;
	snapshot->thread_count = kept;
}

struct stall_error *stall_snapshot_drop_ended(struct stall_snapshot *snapshot)
{
	struct stall_error *err = NULL;

	for (uint32_t i = 0; !err && i < snapshot->process_count; i++) {
		struct stall_error *ended = stall_target_check(&snapshot->processes[i].target);

		if (!ended)
			continue;
		drop_threads(snapshot, i);
		if (!snapshot->thread_count)
			return ended;
		err = stall_snapshot_note(snapshot, "process-lost", "%s", ended->message);
		stall_error_destroy(ended);
	}
	if (!err && !snapshot->thread_count)
		err = stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended",
					 snapshot->processes[0].target.pid);
	return err;
}

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

// The beginning of struct clone_args (linux/sched.h), which all versions of it have.
struct clone_args_0 {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

// A child without a stack of its own in its parent's memory continues on the parent's stack.
static bool is_shared(uint64_t flags, uint64_t stack)
{
	return (flags & CLONE_VM) && !stack;
}

// The call's arguments are on the caller's stack in every C library. Elsewhere nothing is known.
static bool shares_by_clone3(const struct stall_thread *thread)
{
	struct clone_args_0 args;
	uint64_t offset = thread->args[0] - thread->stack_address;

	if (thread->stack_size < sizeof(args) || offset > thread->stack_size - sizeof(args))
		return true;
	memcpy(&args, thread->stack + offset, sizeof(args));
	return is_shared(args.flags, args.stack);
}

static enum stall_label_reason find_reason(const struct stall_thread *thread)
{
	if (thread->is_32bit)
		return STALL_REASON_32BIT;
	if (!thread->in_syscall)
		return STALL_REASON_NONE;
	switch (thread->syscall) {
	case SYS_vfork:
		return STALL_REASON_VFORK;
	case SYS_clone:
		return is_shared(thread->args[0], thread->args[1]) ? STALL_REASON_VFORK
								   : STALL_REASON_NONE;
	case SYS_clone3:
		return shares_by_clone3(thread) ? STALL_REASON_VFORK : STALL_REASON_NONE;
	// Old registers and new memory, from the moment when the old memory is given up until the
	// new program begins; a slow disk makes that long.
	case SYS_execve:
	case SYS_execveat:
		return STALL_REASON_EXEC;
	// A joining thread is woken before it has left its memory (mm_release, kernel/fork.c), and
	// may have started another thread on its stack.
	case SYS_exit:
		return STALL_REASON_EXIT;
	default:
		return STALL_REASON_NONE;
	}
}

void stall_label_reasons_add(struct stall_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		struct stall_thread *thread = &snapshot->threads[i];

		if (thread->label != STALL_VERIFIED && thread->label != STALL_TRUNCATED)
			continue;
		// The capture before has found out, with its stack.
		if (thread->unchanged)
			continue;
		thread->label_reason = find_reason(thread);
		if (thread->label_reason)
			thread->label = STALL_RACED;
	}
}

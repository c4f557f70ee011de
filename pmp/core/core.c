// SPDX-License-Identifier: Apache-2.0
#include "core/core.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "core/core_memory.h"
#include "core/core_modules.h"
#include "core/core_notes.h"
#include "proc/path_status.h"

#define MAX_SYSCALL 1024

static size_t read_memory(void *arg, uint32_t process, uint64_t address, void *buf, size_t size)
{
	return stall_core_memory_read(arg, address, buf, size);
}

static void destroy_memory(void *arg)
{
	stall_core_memory_destroy(arg);
}

// System V ABI, AMD64 supplement, figure 3.36.
static void copy_regs(const struct user_regs_struct *user, struct stall_regs *regs)
{
	const uint64_t values[STALL_REGS] = {
		user->rax, user->rdx, user->rcx, user->rbx, user->rsi, user->rdi,
		user->rbp, user->rsp, user->r8,	 user->r9,  user->r10, user->r11,
		user->r12, user->r13, user->r14, user->r15, user->rip,
	};

	memcpy(regs->value, values, sizeof(values));
	regs->valid = (1U << STALL_REGS) - 1;
}

// orig_rax is the number inside a system call, and negative after an interrupt or exception
// (arch/x86/entry/entry_64.S).
static void copy_syscall(const struct user_regs_struct *user, struct stall_thread *thread)
{
	const uint64_t args[6] = {user->rdi, user->rsi, user->rdx, user->r10, user->r8, user->r9};

	thread->in_syscall = user->orig_rax < MAX_SYSCALL;
	thread->state = thread->in_syscall ? 'S' : 'R';
	if (!thread->in_syscall)
		return;
	thread->syscall = (int64_t)user->orig_rax;
	memcpy(thread->args, args, sizeof(args));
}

static struct stall_error *copy_stack(struct stall_snapshot *snapshot,
				      const struct stall_core_memory *memory, size_t max_stack,
				      struct stall_thread *thread)
{
	uint64_t sp = thread->regs.value[STALL_REG_SP];
	uint64_t end = stall_stack_end(snapshot->processes[0].maps, sp, thread->fs_base);
	uint64_t whole = end > sp ? end - sp : 0;
	size_t size = whole < max_stack ? (size_t)whole : max_stack;

	thread->label = STALL_VERIFIED; // a dumped thread does not run
	thread->stack_address = sp;
	if (!size)
		return NULL;
	thread->stack = stall_arena_alloc(snapshot->arena, size);
	if (thread->stack)
		thread->stack_size = stall_core_memory_read(memory, sp, thread->stack, size);
	if (thread->stack_size < whole)
		thread->label = STALL_TRUNCATED;
	return NULL;
}

static int compare_threads(const void *a, const void *b)
{
	const struct stall_thread *x = a, *y = b;

	return (x->tid > y->tid) - (x->tid < y->tid);
}

static struct stall_error *fill_threads(struct stall_snapshot *snapshot,
					const struct stall_core_memory *memory,
					const struct stall_core_notes *notes, size_t max_stack)
{
	struct stall_process *process = &snapshot->processes[0];

	snapshot->threads = calloc(notes->thread_count + 1, sizeof(*snapshot->threads));
	if (!snapshot->threads)
		return &stall_enomem;
	for (size_t i = 0; i < notes->thread_count; i++) {
		const struct stall_core_thread *note = &notes->threads[i];
		struct stall_thread *thread = &snapshot->threads[snapshot->thread_count++];

		*thread = (struct stall_thread){.tid = note->tid,
						.ns_tid = note->tid,
						.passes = 1,
						.fs_base = note->regs.fs_base};
		if (note->tid == process->target.pid)
			memcpy(thread->comm, process->comm, sizeof(thread->comm));
		copy_regs(&note->regs, &thread->regs);
		copy_syscall(&note->regs, thread);
		struct stall_error *err = copy_stack(snapshot, memory, max_stack, thread);
		if (err)
			return err;
	}
	qsort(snapshot->threads, snapshot->thread_count, sizeof(*snapshot->threads),
	      compare_threads);
	process->thread_count = snapshot->thread_count;
	process->threads_lost = notes->threads_lost;
	return NULL;
}

static struct stall_error *fill_process(struct stall_snapshot *snapshot,
					const struct stall_core_notes *notes)
{
	struct stall_process *process = calloc(1, sizeof(*process));

	if (!process)
		return &stall_enomem;
	snapshot->processes = process;
	snapshot->process_count = 1;
	process->target = STALL_TARGET_NONE;
	process->target.pid = notes->threads[0].tid;
	process->ppid = notes->threads[0].ppid;
	if (notes->has_process) {
		process->target.pid = notes->process.pr_pid;
		process->ppid = notes->process.pr_ppid;
		memcpy(process->comm, notes->process.pr_fname, sizeof(process->comm) - 1);
	}
	return NULL;
}

static struct stall_error *fill_maps(struct stall_snapshot *snapshot,
				     const struct stall_core_memory *memory,
				     const struct stall_core_notes *notes,
				     const struct stall_core_options *options)
{
	struct stall_process *process = &snapshot->processes[0];
	uint32_t main;
	struct stall_error *err =
		stall_core_maps_create(memory, notes, &options->files, &process->maps, &main);

	if (err || main == STALL_NO_MODULE)
		return err;
	process->exe = strdup(process->maps->modules[main].path);
	process->exe_deleted = process->maps->modules[main].deleted;
	return process->exe ? NULL : &stall_enomem;
}

static struct stall_error *note_modules(struct stall_snapshot *snapshot)
{
	const struct stall_maps *maps = snapshot->processes[0].maps;
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < maps->module_count; i++) {
		if (maps->modules[i].error)
			err = stall_snapshot_note(snapshot, "module-unreadable", "%s: %s",
						  maps->modules[i].path, maps->modules[i].error);
	}
	return err;
}

static struct stall_error *note_what_is_missing(struct stall_snapshot *snapshot,
						const struct stall_core_memory *memory,
						const struct stall_core_notes *notes)
{
	struct stall_error *err = NULL;

	if (memory->missing || notes->torn)
		err = stall_snapshot_note(snapshot, "core-truncated",
					  "the core file was cut: %llu bytes of memory are missing "
					  "(raise ulimit -c, or look for a full disk)",
					  (unsigned long long)memory->missing);
	if (!err && notes->file_count == 0)
		err = stall_snapshot_note(snapshot, "core-files",
					  "the core file does not say which files were mapped: "
					  "frames stay without names");
	if (!err && notes->threads_lost)
		err = stall_snapshot_note(snapshot, "threads-lost",
					  "%zu threads are beyond the limit: raise --max-threads",
					  notes->threads_lost);
	return err ? err : note_modules(snapshot);
}

static void snapshot_destroyp(struct stall_snapshot **snapshot)
{
	stall_snapshot_destroy(*snapshot);
}

static void notes_deinit(struct stall_core_notes *notes)
{
	stall_core_notes_deinit(notes);
}

static uint64_t written_at(int fd)
{
	struct stall_path_status status;

	return stall_fd_status(fd, &status) ? status.mtime_ns : 0;
}

static struct stall_error *open_core(int core_fd, struct stall_core_memory **ret)
{
	struct stall_elf *elf = NULL;
	struct stall_error *err = stall_elf_open(core_fd, &elf);

	if (err)
		return err;
	if (elf->type != ET_CORE) {
		stall_elf_destroy(elf);
		return stall_error_create(STALL_ERROR_FORMAT,
					  "it is an ELF file, but no core file");
	}
	return stall_core_memory_create(elf, ret);
}

struct stall_error *stall_core_create(struct stall_arena *arena, int core_fd,
				      const struct stall_core_options *options,
				      struct stall_snapshot **ret)
{
	_cleanup_(snapshot_destroyp) struct stall_snapshot *snapshot = calloc(1, sizeof(*snapshot));
	_cleanup_(notes_deinit) struct stall_core_notes notes = {};
	struct stall_core_memory *memory = NULL;
	uint64_t started = stall_clock_ns(CLOCK_MONOTONIC);

	if (!snapshot)
		return &stall_enomem;
	uint64_t wall_ns = written_at(core_fd);
	struct stall_error *err = open_core(core_fd, &memory);
	if (err)
		return err;
	snapshot->arena = arena;
	snapshot->backend = "core";
	snapshot->memory = (struct stall_memory){read_memory, destroy_memory, memory};
	snapshot->wall_ns = wall_ns;
	err = stall_core_notes_init(&notes, memory->elf, options->max_threads);
	if (!err)
		err = fill_process(snapshot, &notes);
	if (!err)
		err = fill_maps(snapshot, memory, &notes, options);
	if (!err)
		err = fill_threads(snapshot, memory, &notes, options->max_stack);
	// Nothing changes between two reads of a file: the second makes the words count as stable.
	for (int i = 0; !err && i < 2; i++)
		err = stall_snapshot_read_futexes(snapshot);
	if (!err)
		err = note_what_is_missing(snapshot, memory, &notes);
	if (err)
		return err;
	snapshot->snapshot_ns = stall_clock_ns(CLOCK_MONOTONIC) - started;
	*ret = no_cleanup_ptr(snapshot);
	return NULL;
}

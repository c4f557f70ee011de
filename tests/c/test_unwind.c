// SPDX-License-Identifier: Apache-2.0
// The worker's stepper against libdwfl's own on the same stopped threads, and against what the
// target knows of itself.
#include <elfutils/libdwfl.h>
#include <fcntl.h>

#include "base/cleanup.h"
#include "check.h"
#include "frozen.h"
#include "snapshot/read_child.h"
#include "target_process.h"
#include "unwind/worker.h"

static struct stall_arena arena;
static struct stall_worker *worker;

// What libdwfl gets of the snapshot.
struct walk {
	const struct stall_snapshot *snapshot;
	const struct stall_thread *thread;
	uint64_t pcs[STALL_MAX_FRAMES];
	size_t count;
};

static pid_t next_thread(Dwfl *dwfl, void *arg, void **thread_arg)
{
	struct walk *walk = arg;

	if (*thread_arg)
		return 0;
	*thread_arg = walk;
	return walk->thread->tid;
}

static bool read_word(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *ret, void *arg)
{
	struct walk *walk = arg;

	return stall_read_child_range(&walk->snapshot->processes[0].target, address, ret, 8) == 8;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
	struct walk *walk = arg;
	const uint64_t *value = walk->thread->regs.value;

	dwfl_thread_state_register_pc(thread, value[STALL_REG_PC]);
	return dwfl_thread_state_registers(thread, 0, STALL_REGS, (const Dwarf_Word *)value);
}

static int take_frame(Dwfl_Frame *frame, void *arg)
{
	struct walk *walk = arg;
	Dwarf_Addr pc;

	if (!dwfl_frame_pc(frame, &pc, NULL) || walk->count == STALL_MAX_FRAMES)
		return DWARF_CB_ABORT;
	walk->pcs[walk->count++] = pc;
	return DWARF_CB_OK;
}

static const Dwfl_Thread_Callbacks thread_callbacks = {
	.next_thread = next_thread,
	.memory_read = read_word,
	.set_initial_registers = set_registers,
};

static char *debug_path;
static const Dwfl_Callbacks callbacks = {
	.find_elf = dwfl_linux_proc_find_elf,
	.find_debuginfo = dwfl_standard_find_debuginfo,
	.debuginfo_path = &debug_path,
};

static void walk_by_dwfl(const struct stall_snapshot *snapshot, const struct stall_thread *thread,
			 struct walk *walk)
{
	Dwfl *dwfl = dwfl_begin(&callbacks);
	pid_t pid = snapshot->processes[0].target.pid;

	*walk = (struct walk){.snapshot = snapshot, .thread = thread};
	dwfl_report_begin(dwfl);
	CHECK_INT(dwfl_linux_proc_report(dwfl, pid), 0);
	dwfl_report_end(dwfl, NULL, NULL);
	CHECK(dwfl_attach_state(dwfl, NULL, pid, &thread_callbacks, walk));
	dwfl_getthread_frames(dwfl, thread->tid, take_frame, walk);
	dwfl_end(dwfl);
}

static size_t ended_live; // stacks whose last return address, 0, was in memory that is live

static void compare_stack(const struct stall_snapshot *snapshot,
			  const struct stall_unwound *unwound, size_t index)
{
	const struct stall_stack *stack = &unwound->stacks[index];
	struct walk walk;

	walk_by_dwfl(snapshot, &snapshot->threads[index], &walk);
	if (stack->end == STALL_UNWIND_NO_MEMORY && stack->live_reads)
		ended_live++;
	else
		CHECK_INT(stack->end, STALL_UNWIND_COMPLETE);
	CHECK_INT(stack->count, walk.count);
	for (size_t i = 0; i < stack->count && i < walk.count; i++)
		CHECK_INT(unwound->frames[stack->frames[i]].pc, walk.pcs[i]);
}

static const struct stall_stack *stack_of(const struct stall_snapshot *snapshot,
					  const struct stall_unwound *unwound, pid_t tid)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		if (snapshot->threads[i].tid == tid)
			return &unwound->stacks[i];
	}
	return NULL;
}

// `expected` is a list as in JSON: "a","b". Frames of libraries may stand between.
static void check_names(const struct stall_unwound *unwound, const struct stall_stack *stack,
			const char *expected)
{
	uint32_t at = 0;

	while (*expected == '"') {
		char name[128];

		if (sscanf(expected, "\"%127[^\"]\"", name) != 1)
			break;
		while (at < stack->count &&
		       (!unwound->frames[stack->frames[at]].symbol ||
			strcmp(unwound->frames[stack->frames[at]].symbol, name)))
			at++;
		CHECK(at < stack->count);
		if (at == stack->count) {
			fprintf(stderr, "no frame %s\n", name);
			return;
		}
		at++;
		expected += strlen(name) + 2;
		expected += *expected == ',';
	}
}

// Each thread's shape of stack, as the target printed it.
static void check_facts(const struct target_process *target, const struct stall_snapshot *snapshot,
			const struct stall_unwound *unwound)
{
	size_t checked = 0;

	for (const char *line = target->facts; line && *line; line = strchr(line, '\n') + 1) {
		const char *frames = strstr(line, "\"frames\":["), *tid = strstr(line, "\"tid\":");
		const char *end = strchr(line, '\n');

		if (!frames || !tid || frames > end)
			continue;
		const struct stall_stack *stack =
			stack_of(snapshot, unwound, atoi(tid + strlen("\"tid\":")));
		if (!stack) // the parent of a vfork cannot be stopped
			continue;
		check_names(unwound, stack, frames + strlen("\"frames\":["));
		checked++;
	}
	CHECK(checked >= 10);
}

static void test_target(const char *const *argv, size_t max_stack, bool has_facts)
{
	struct target_process target;
	struct stall_snapshot *snapshot = NULL;
	struct stall_unwound unwound = {};

	if (!target_start(&target, argv)) {
		printf("skipped: %s is not built\n", argv[0]);
		return;
	}
	arena.used = 0;
	CHECK_OK(frozen_snapshot(&arena, target.pid, max_stack, &snapshot));
	CHECK_OK(stall_worker_unwind(worker, snapshot, &unwound));
	CHECK(!unwound.partial);
	CHECK(snapshot->thread_count > 1);
	uint32_t live_reads = 0;
	ended_live = 0;
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		compare_stack(snapshot, &unwound, i);
		live_reads += unwound.stacks[i].live_reads;
	}
	// Where copies are short, the live process is read, and that is reported.
	CHECK(max_stack >= 4096 || live_reads > 0);
	CHECK_INT(ended_live, has_facts && max_stack < 4096 ? 1 : 0);
	if (has_facts)
		check_facts(&target, snapshot, &unwound);
	frozen_thaw(snapshot);
	stall_unwound_deinit(&unwound);
	stall_snapshot_destroy(snapshot);
	target_stop(&target);
}

int main(void)
{
	static const struct stall_worker_options options = {.deadline_ms = 20000};
	char module[PATH_MAX];

	CHECK_OK(stall_arena_init(&arena, (size_t)1 << 30));
	CHECK_OK(stall_worker_create(&arena, &options, &worker));
	target_path("module.so", module);
	const char *const frames[] = {"frames", module, NULL};
	test_target(frames, 128 * 1024, true);
	test_target(frames, 64, true);
	static const char *const twins[] = {"threads", "threads-nopie", "threads-static",
					    "threads-static-pie", "threads-debugframe"};
	for (size_t i = 0; i < sizeof(twins) / sizeof(twins[0]); i++) {
		const char *const argv[] = {twins[i], "8", "20", NULL};

		test_target(argv, 128 * 1024, false);
	}
	stall_worker_destroy(worker);
	stall_arena_deinit(&arena);
	return check_done();
}

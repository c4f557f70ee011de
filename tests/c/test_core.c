// SPDX-License-Identifier: Apache-2.0
// A core file gives the stacks that the process had; a damaged one gives less, with a note.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "core/core.h"
#include "core_file.h"
#include "inputs.h"
#include "snapshot/backend.h"
#include "target_process.h"
#include "unwind/worker.h"

static struct stall_arena arena;
static struct stall_worker *worker;

static struct stall_error *read_core(int fd, struct stall_snapshot **ret)
{
	static const struct stall_core_options options = {.files = STALL_CORE_NO_FILES,
							  .max_stack = STALL_DEFAULT_MAX_STACK,
							  .max_threads = 1000};

	arena.used = 0;
	return stall_core_create(&arena, fd, &options, ret);
}

struct expected {
	pid_t tid;
	uint64_t pcs[STALL_MAX_FRAMES];
	uint32_t count;
};

static void expect(const struct stall_snapshot *snapshot, const struct stall_unwound *unwound,
		   struct expected *expected)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_stack *stack = &unwound->stacks[i];

		expected[i].tid = snapshot->threads[i].tid;
		expected[i].count = stack->count;
		for (uint32_t k = 0; k < stack->count; k++)
			expected[i].pcs[k] = unwound->frames[stack->frames[k]].pc;
	}
}

static void compare(const struct stall_snapshot *snapshot, const struct stall_unwound *unwound,
		    const struct expected *expected)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_stack *stack = &unwound->stacks[i];
		const struct stall_thread *thread = &snapshot->threads[i];

		CHECK_INT(thread->tid, expected[i].tid);
		CHECK_INT(thread->label, STALL_VERIFIED);
		CHECK(thread->in_syscall);
		CHECK_INT(thread->state, 'S');
		CHECK(thread->fs_base != 0);
		CHECK_INT(stack->end, STALL_UNWIND_COMPLETE);
		CHECK_INT(stack->count, expected[i].count);
		for (uint32_t k = 0; k < stack->count && k < expected[i].count; k++)
			CHECK_INT(unwound->frames[stack->frames[k]].pc, expected[i].pcs[k]);
	}
}

// A stop interrupts a system call: a thread goes back to the instruction of the call, and makes it
// again when it runs. False where one has not for minutes.
static bool wait_blocked(const struct stall_snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		char path[64], text[16] = "";

		snprintf(path, sizeof(path), "/proc/%d/syscall", snapshot->threads[i].tid);
		for (int k = 0; text[0] < '0' || text[0] > '9'; k++) { // else: running
			FILE *file = fopen(path, "re");

			if (k == 100000 || !file)
				return false;
			if (!fgets(text, sizeof(text), file))
				text[0] = 0;
			fclose(file);
			if (k)
				usleep(1000);
		}
	}
	return true;
}

// The stacks of the process while its threads are stopped, then its core.
static int make_core(struct target_process *target, struct expected *expected, size_t *ret_count)
{
	struct stall_snapshot *snapshot = NULL;
	struct stall_unwound unwound = {};
	struct stall_snapshot_options options;
	void *state = NULL;

	stall_snapshot_options_init(&options);
	options.stop_reads = true;
	options.deadline_ms = 60000;
	arena.used = 0;
	CHECK_OK(stall_snapshot_create(&arena, &target->pid, 1, NULL, &snapshot));
	CHECK_OK(stall_backend_ptrace.open(&options, &state));
	CHECK_OK(stall_backend_ptrace.capture(state, snapshot, &options));
	CHECK_OK(stall_worker_unwind(worker, snapshot, &unwound));
	*ret_count = snapshot->thread_count;
	CHECK(*ret_count <= 16);
	expect(snapshot, &unwound, expected);
	CHECK(wait_blocked(snapshot));
	stall_backend_ptrace.close(state);
	stall_unwound_deinit(&unwound);
	stall_snapshot_destroy(snapshot);
	return dump_core(target);
}

static void test_whole(int core, const struct expected *expected, size_t count)
{
	struct stall_snapshot *snapshot = NULL;
	struct stall_unwound unwound = {};
	uint64_t page = 0;

	CHECK_OK(read_core(fcntl(core, F_DUPFD_CLOEXEC, 3), &snapshot));
	CHECK_INT(snapshot->thread_count, count);
	CHECK_INT(snapshot->note_count, 0);
	CHECK_STRING(snapshot->backend, "core");
	CHECK(snapshot->processes[0].exe && strstr(snapshot->processes[0].exe, "target-threads"));
	CHECK_STRING(snapshot->processes[0].comm, "target-threads");
	CHECK(snapshot->futex_count > 0);
	for (size_t i = 0; i < snapshot->futex_count; i++)
		CHECK(snapshot->futexes[i].readable && snapshot->futexes[i].stable);
	CHECK_OK(stall_worker_unwind(worker, snapshot, &unwound));
	compare(snapshot, &unwound, expected);
	CHECK_INT(stall_snapshot_read(snapshot, 0, 8, &page, 8), 0);
	CHECK_INT(stall_snapshot_read(snapshot, 0, UINT64_MAX - 3, &page, 8), 0);
	stall_unwound_deinit(&unwound);
	stall_snapshot_destroy(snapshot);
}

// Reads it as far as it goes. True where it gave a snapshot.
static bool try_core(const uint8_t *bytes, size_t size, size_t *ret_notes)
{
	struct stall_snapshot *snapshot = NULL;
	struct stall_unwound unwound = {};
	int fd = file_of(bytes, size);
	struct stall_error *err = read_core(fd, &snapshot);

	if (err) {
		CHECK(strlen(err->message) > 0 && !strchr(err->message, '\n'));
		stall_error_destroy(err);
		close(fd);
		return false;
	}
	*ret_notes = snapshot->note_count;
	CHECK_OK(stall_worker_unwind(worker, snapshot, &unwound));
	CHECK_INT(unwound.stack_count, snapshot->thread_count);
	stall_unwound_deinit(&unwound);
	stall_snapshot_destroy(snapshot);
	return true;
}

static void test_cut(const uint8_t *bytes, size_t size)
{
	size_t notes, partial = 0;

	for (int i = 0; i < 16; i++) {
		if (try_core(bytes, size * i / 16, &notes)) {
			CHECK(notes > 0); // it says what is missing
			partial++;
		}
	}
	CHECK(partial > 0);
	CHECK(!try_core(bytes, 0, &notes));
	CHECK(!try_core((const uint8_t *)"#!/bin/sh\n", 10, &notes));
}

static void test_damaged(const uint8_t *original, size_t size, int rounds)
{
	_cleanup_free_ uint8_t *bytes = malloc(size);
	size_t notes, opened = 0;

	for (int round = 0; round < rounds; round++) {
		memcpy(bytes, original, size);
		// Headers and notes are at the front.
		for (uint64_t i = random_word() % 200; i > 0; i--)
			bytes[random_word() % (round % 2 ? 4096 : 65536)] = (uint8_t)random_word();
		opened += try_core(bytes, size, &notes);
	}
	CHECK(opened > 0);
}

// The program was replaced since: its new file must not name the old frames.
static void test_other_program(int core)
{
	struct stall_core_options options = {
		.files = {open("/proc/self/exe", O_RDONLY | O_CLOEXEC), -1, -1},
		.max_stack = STALL_DEFAULT_MAX_STACK,
		.max_threads = 1000,
	};
	struct stall_snapshot *snapshot = NULL;
	struct stall_unwound unwound = {};
	size_t named = 0;

	arena.used = 0;
	CHECK_OK(stall_core_create(&arena, fcntl(core, F_DUPFD_CLOEXEC, 3), &options, &snapshot));
	CHECK_INT(snapshot->note_count, 1);
	CHECK_STRING(snapshot->notes[0].code, "module-unreadable");
	CHECK_OK(stall_worker_unwind(worker, snapshot, &unwound));
	for (size_t i = 0; i < unwound.frame_count; i++) {
		const struct stall_frame *frame = &unwound.frames[i];
		const struct stall_maps *maps = snapshot->processes[0].maps;

		if (frame->module != STALL_NO_MODULE &&
		    strcmp(maps->modules[frame->module].path, snapshot->processes[0].exe) == 0)
			named += frame->symbol != NULL;
	}
	CHECK_INT(named, 0);
	stall_unwound_deinit(&unwound);
	stall_snapshot_destroy(snapshot);
}

// A limit on threads is kept, and noted.
static void test_thread_limit(int core, size_t count)
{
	static const struct stall_core_options options = {.files = STALL_CORE_NO_FILES,
							  .max_stack = STALL_DEFAULT_MAX_STACK,
							  .max_threads = 2};
	struct stall_snapshot *snapshot = NULL;

	arena.used = 0;
	CHECK_OK(stall_core_create(&arena, fcntl(core, F_DUPFD_CLOEXEC, 3), &options, &snapshot));
	CHECK_INT(snapshot->thread_count, 2);
	CHECK_INT(snapshot->processes[0].threads_lost, count - 2);
	CHECK_INT(snapshot->note_count, 1);
	CHECK_STRING(snapshot->notes[0].code, "threads-lost");
	stall_snapshot_destroy(snapshot);
}

// Not a core, though an ELF file.
static void test_other_elf(void)
{
	struct stall_snapshot *snapshot = NULL;
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct stall_error *err = read_core(fd, &snapshot);

	CHECK(err && strstr(err->message, "no core file"));
	stall_error_destroy(err);
	close(fd);
}

static void test_core(const char *dir, int rounds)
{
	static const char *const argv[] = {"threads", "8", "20", NULL};
	struct expected expected[16];
	struct target_process target;
	size_t count;

	if (!cores_are_written_to(dir) || !target_start(&target, argv)) {
		printf("skipped: no core files here, or no targets built\n");
		return;
	}
	_cleanup_close_ int core = make_core(&target, expected, &count);
	target_stop(&target);
	CHECK(core >= 0);
	if (core < 0)
		return;
	test_whole(core, expected, count);
	test_other_program(core);
	test_thread_limit(core, count);
	size_t size = (size_t)lseek(core, 0, SEEK_END);
	_cleanup_free_ uint8_t *bytes = malloc(size);
	CHECK(pread(core, bytes, size, 0) == (ssize_t)size);
	test_cut(bytes, size);
	test_damaged(bytes, size, rounds);
}

int main(int argc, char **argv)
{
	static const struct stall_worker_options options = {.deadline_ms = 20000};
	char dir[] = "/tmp/stall-core-XXXXXX";

	random_state = check_seed(argc, argv);
	CHECK_OK(stall_arena_init(&arena, (size_t)1 << 30));
	CHECK_OK(stall_worker_create(&arena, &options, &worker));
	CHECK(mkdtemp(dir));
	test_core(dir, argc > 1 ? 300 : 20);
	test_other_elf();
	CHECK(rmdir(dir) == 0);
	stall_worker_destroy(worker);
	stall_arena_deinit(&arena);
	return check_done();
}

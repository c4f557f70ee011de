// SPDX-License-Identifier: Apache-2.0
#include "snapshot/snapshot.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child_process.h"
#include "check.h"

#define PAGE 4096UL

static void test_futex_calls(void)
{
	static const struct {
		bool in_syscall;
		int64_t syscall;
		uint64_t operation;
		bool waits;
	} cases[] = {
		{true, SYS_futex, FUTEX_WAIT, true},
		{true, SYS_futex, FUTEX_WAIT_PRIVATE, true},
		{true, SYS_futex, UINT64_C(7) << 32 | FUTEX_WAIT_PRIVATE, true},
		{true, SYS_futex, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME,
		 true},
		{true, SYS_futex, FUTEX_LOCK_PI_PRIVATE, true},
		{true, SYS_futex, 13 /* FUTEX_LOCK_PI2 */, true},
		{true, SYS_futex, FUTEX_WAIT_REQUEUE_PI, true},
		{true, 455 /* futex_wait */, 0, true},
		{true, SYS_futex, FUTEX_WAKE_PRIVATE, false},
		{true, SYS_futex, FUTEX_CMP_REQUEUE, false},
		{true, SYS_read, FUTEX_WAIT, false},
		{false, SYS_futex, FUTEX_WAIT, false},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stall_thread thread = {
			.in_syscall = cases[i].in_syscall,
			.syscall = cases[i].syscall,
			.args = {0x1234, cases[i].operation},
		};

		CHECK_INT(stall_thread_futex(&thread), cases[i].waits ? 0x1234 : 0);
	}
}

// Threads that others may have written to the stacks of, by the call that they are in.
static void test_label_reasons(void)
{
	uint64_t shared[8] = {CLONE_VM | CLONE_VFORK}, apart[8] = {CLONE_VM | CLONE_VFORK};
	const uint64_t in_copy = 0x7000;
	const struct {
		bool in_syscall;
		int64_t syscall;
		uint64_t arg0, arg1;
		const uint64_t *stack;
		enum stall_label_reason reason;
	} cases[] = {
		{true, SYS_vfork, 0, 0, NULL, STALL_REASON_VFORK},
		{false, SYS_vfork, 0, 0, NULL, STALL_REASON_NONE},
		{true, SYS_clone, CLONE_VM | CLONE_VFORK, 0, NULL, STALL_REASON_VFORK},
		{true, SYS_clone, CLONE_VM | CLONE_VFORK, 0x8000, NULL, STALL_REASON_NONE},
		{true, SYS_clone, SIGCHLD, 0, NULL, STALL_REASON_NONE}, // fork
		{true, SYS_clone3, in_copy, 88, shared, STALL_REASON_VFORK},
		{true, SYS_clone3, in_copy, 88, apart, STALL_REASON_NONE},
		{true, SYS_clone3, in_copy + 8, 88, apart, STALL_REASON_VFORK}, // not whole
		{true, SYS_clone3, in_copy - 8, 88, apart, STALL_REASON_VFORK},
		{true, SYS_clone3, UINT64_MAX, 88, NULL, STALL_REASON_VFORK},
		{true, SYS_execve, 0, 0, NULL, STALL_REASON_EXEC},
		{true, SYS_execveat, 0, 0, NULL, STALL_REASON_EXEC},
		{true, SYS_exit, 0, 0, NULL, STALL_REASON_EXIT},
		{true, SYS_exit_group, 0, 0, NULL, STALL_REASON_NONE},
		{true, SYS_futex, 0, 0, NULL, STALL_REASON_NONE},
	};

	apart[5] = 0x8000;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (int label = STALL_VERIFIED; label <= STALL_TRUNCATED; label++) {
			struct stall_thread thread = {
				.label = label,
				.in_syscall = cases[i].in_syscall,
				.syscall = cases[i].syscall,
				.args = {cases[i].arg0, cases[i].arg1},
				.stack_address = in_copy,
				.stack = (uint8_t *)cases[i].stack,
				.stack_size = cases[i].stack ? sizeof(shared) : 0,
			};
			struct stall_snapshot snapshot = {.threads = &thread, .thread_count = 1};
			bool exact = label == STALL_VERIFIED || label == STALL_TRUNCATED;
			enum stall_label_reason reason =
				exact ? cases[i].reason : STALL_REASON_NONE;

			stall_label_reasons_add(&snapshot);
			CHECK_INT(thread.label_reason, reason);
			CHECK_INT(thread.label, reason ? STALL_RACED : label);
		}
	}
}

// A child with the same shared page, so that its words can be changed from here.
static void test_read_futexes(void)
{
	struct stall_arena arena;
	struct stall_snapshot *snapshot = NULL;
	uint8_t *page =
		mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const uint64_t words[] = {
		(uintptr_t)page + 256,
		(uintptr_t)page + 1024,
		(uintptr_t)page + 256,
		(uintptr_t)page + 2 * PAGE - 8, // ends with its mapping
		3,
		UINT64_MAX - 3, // no such memory
	};
	enum { COUNT = sizeof(words) / sizeof(words[0]) };
	mprotect(page + 2 * PAGE, PAGE, PROT_NONE);
	pid_t child = stall_idle_child_create();
	CHECK_OK(stall_arena_init(&arena, PAGE));
	CHECK_OK(stall_snapshot_create(&arena, &child, 1, NULL, &snapshot));
	snapshot->threads = calloc(COUNT, sizeof(*snapshot->threads));
	snapshot->thread_count = COUNT;
	for (int i = 0; i < COUNT; i++) {
		snapshot->threads[i].in_syscall = true;
		snapshot->threads[i].syscall = SYS_futex;
		snapshot->threads[i].args[0] = words[i];
	}
	page[256] = 1;
	page[1024] = 2;
	CHECK_OK(stall_snapshot_read_futexes(snapshot));
	CHECK_INT(snapshot->futex_count, 3);
	CHECK(!snapshot->futexes[0].stable && !snapshot->futexes[0].read_twice);
	page[1024 - 16] = 77; // within the part that is checked
	CHECK_OK(stall_snapshot_read_futexes(snapshot));
	CHECK_INT(snapshot->futex_count, 3);
	const struct stall_futex *futexes = snapshot->futexes;
	CHECK_INT(futexes[0].address, words[0]);
	CHECK(futexes[0].readable && futexes[0].stable);
	CHECK_INT(futexes[0].bytes[STALL_FUTEX_BEFORE], 1);
	CHECK_INT(futexes[1].address, words[1]);
	CHECK(futexes[1].readable && !futexes[1].stable && futexes[1].read_twice);
	CHECK_INT(futexes[1].first[0], 0);
	CHECK_INT(futexes[1].bytes[0], 77);
	CHECK_INT(futexes[2].address, words[3]);
	CHECK(!futexes[2].readable && !futexes[2].stable);
	stall_snapshot_destroy(snapshot);
	stall_arena_deinit(&arena);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	munmap(page, 3 * PAGE);
}

static void test_processes(void)
{
	struct stall_arena arena;
	struct stall_snapshot *snapshot = NULL;
	pid_t child = stall_idle_child_create();

	pid_t pids[] = {child, getpid(), child};
	CHECK_OK(stall_arena_init(&arena, PAGE));
	CHECK_OK(stall_snapshot_create(&arena, pids, 3, NULL, &snapshot));
	CHECK_INT(snapshot->process_count, 2);
	CHECK_INT(snapshot->processes[0].ppid, getpid());
	CHECK_STRING(snapshot->processes[0].comm, snapshot->processes[1].comm);
	CHECK_STRING(snapshot->processes[0].exe, snapshot->processes[1].exe);
	// The files of both are open once. The child's come first; the vdso has no file.
	const struct stall_maps *first = snapshot->processes[0].maps;
	const struct stall_maps *second = snapshot->processes[1].maps;
	CHECK_INT(first->module_count, second->module_count);
	for (size_t i = 0; i < first->module_count && i < second->module_count; i++) {
		CHECK(first->modules[i].fd >= 0 && !first->modules[i].shared);
		CHECK_INT(second->modules[i].shared, second->modules[i].ino != 0);
		if (second->modules[i].shared)
			CHECK_INT(second->modules[i].fd, first->modules[i].fd);
	}
	CHECK(snapshot->processes[0].start_stack && snapshot->processes[0].start_brk);
	CHECK_OK(stall_snapshot_note(snapshot, "code", "%d words", 2));
	CHECK_STRING(snapshot->notes[snapshot->note_count - 1].message, "2 words");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);

	// One of two is gone: a note. All are: an error.
	struct stall_snapshot *previous = snapshot;
	CHECK_OK(stall_snapshot_create(&arena, pids, 2, previous, &snapshot));
	CHECK_INT(snapshot->process_count, 1);
	for (size_t i = 0; i < snapshot->processes[0].maps->module_count; i++)
		CHECK(snapshot->processes[0].maps->modules[i].fd >= 0);
	stall_snapshot_destroy(previous);
	CHECK_INT(snapshot->processes[0].target.pid, getpid());
	CHECK_INT(snapshot->note_count, 1);
	CHECK_STRING(snapshot->notes[0].code, "process-lost");
	stall_snapshot_destroy(snapshot);
	struct stall_error *err = stall_snapshot_create(&arena, pids, 1, NULL, &snapshot);
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	stall_error_destroy(err);
	stall_arena_deinit(&arena);
}

int main(void)
{
	test_futex_calls();
	test_label_reasons();
	test_read_futexes();
	test_processes();
	return check_done();
}

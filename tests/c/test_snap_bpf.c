// SPDX-License-Identifier: Apache-2.0
// The backend that stops nothing, on a process of the test's own with known threads. Threads that run,
// several processes, and those that end: tests/root.
#include "snapshot/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define BLOCKED 50
#define MARK 0x5354414c4c53434f // "STALLSCO"
#define ROUNDS 3		// each with the one before

// What the child reports about itself.
struct facts {
	uint64_t mutex;
	pid_t main;
	struct {
		pid_t tid;
		uint64_t pthread, mark;
	} blocked[BLOCKED];
};

static struct facts *facts;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *block(void *arg)
{
	volatile uint64_t mark = MARK ^ (uintptr_t)arg;
	size_t i = (uintptr_t)arg;

	facts->blocked[i].pthread = pthread_self();
	facts->blocked[i].mark = (uintptr_t)&mark;
	__atomic_store_n(&facts->blocked[i].tid, gettid(), __ATOMIC_RELEASE);
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	return (void *)mark;
}

static void child_main(void)
{
	pthread_t thread;
	char name[16];

	pthread_mutex_lock(&mutex);
	facts->mutex = (uintptr_t)&mutex;
	facts->main = getpid();
	for (uintptr_t i = 0; i < BLOCKED; i++) {
		pthread_create(&thread, NULL, block, (void *)i);
		snprintf(name, sizeof(name), "blocked-%zu", (size_t)i);
		pthread_setname_np(thread, name);
	}
	for (;;)
		pause();
}

// The field of a /proc file that starts with `key`, as a number; -1 where there is none.
static long long proc_field(pid_t pid, pid_t tid, const char *file, const char *key)
{
	char path[64], line[256];
	long long value = -1;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", pid, tid, file);
	FILE *stream = fopen(path, "re");
	while (stream && fgets(line, sizeof(line), stream)) {
		if (!strncmp(line, key, strlen(key)))
			value = strtoll(line + strlen(key), NULL, 0);
	}
	if (stream)
		fclose(stream);
	return value;
}

static void wait_until_blocked(pid_t pid)
{
	for (int i = 0; i < BLOCKED; i++) {
		pid_t tid;

		while (!(tid = __atomic_load_n(&facts->blocked[i].tid, __ATOMIC_ACQUIRE)))
			sched_yield();
		while (proc_field(pid, tid, "syscall", "") != SYS_futex)
			sched_yield();
	}
	while (proc_field(pid, pid, "syscall", "") != SYS_pause) // all have their names
		sched_yield();
}

static const struct stall_thread *find(const struct stall_snapshot *snapshot, pid_t tid)
{
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		if (snapshot->threads[i].tid == tid)
			return &snapshot->threads[i];
	}
	return NULL;
}

static uint64_t word_at(const struct stall_thread *thread, uint64_t address)
{
	uint64_t word = 0;
	uint64_t offset = address - thread->stack_address;

	if (address >= thread->stack_address && offset + sizeof(word) <= thread->stack_size)
		memcpy(&word, thread->stack + offset, sizeof(word));
	return word;
}

static void check_blocked(const struct stall_snapshot *snapshot, int i)
{
	const struct stall_thread *thread = find(snapshot, facts->blocked[i].tid);
	char name[16];

	CHECK(thread);
	if (!thread)
		return;
	snprintf(name, sizeof(name), "blocked-%d", i);
	CHECK_STRING(thread->comm, name);
	CHECK_INT(thread->label, STALL_VERIFIED);
	CHECK_INT(thread->state, 'S');
	CHECK(!thread->on_cpu);
	CHECK_INT(thread->ns_tid, thread->tid);
	CHECK_INT(thread->fs_base, facts->blocked[i].pthread);
	CHECK(thread->in_syscall);
	CHECK_INT(stall_thread_futex(thread), facts->mutex);
	CHECK_INT(thread->stopped_ns, 0);
	CHECK_INT(word_at(thread, facts->blocked[i].mark), MARK ^ i);
	CHECK(thread->kernel_frame_count >= 3);
	CHECK((int64_t)thread->kernel_frames[0] < 0); // the kernel's half
	CHECK_INT(thread->switches,
		  proc_field(facts->main, thread->tid, "status", "voluntary_ctxt_switches:") +
			  proc_field(facts->main, thread->tid, "status",
				     "nonvoluntary_ctxt_switches:"));
	CHECK(thread->stack_address + thread->stack_size <= thread->fs_base);
}

static void check_futex(const struct stall_snapshot *snapshot)
{
	CHECK_INT(snapshot->futex_count, 1);
	if (snapshot->futex_count != 1)
		return;
	const struct stall_futex *futex = &snapshot->futexes[0];
	int owner;

	CHECK_INT(futex->address, facts->mutex);
	CHECK(futex->readable && futex->stable);
	memcpy(&owner, futex->bytes + STALL_FUTEX_BEFORE + 8, sizeof(owner)); // __owner
	CHECK_INT(owner, facts->main);
}

static void test_known_threads(void *state, struct stall_arena *arena, pid_t child)
{
	struct stall_snapshot_options options;
	struct stall_snapshot *previous = NULL, *snapshot = NULL;

	stall_snapshot_options_init(&options);
	for (int round = 0; round < ROUNDS; round++) {
		stall_arena_reset(arena, SIZE_MAX);
		CHECK_OK(stall_snapshot_create(arena, &child, 1, previous, &snapshot));
		CHECK_OK(stall_backend_bpf.capture(state, snapshot, &options));
		stall_snapshot_destroy(previous);
		previous = snapshot;
		CHECK_INT(snapshot->thread_count, BLOCKED + 1);
		CHECK_INT(snapshot->processes[0].thread_count, BLOCKED + 1);
		CHECK_INT(snapshot->processes[0].threads_lost, 0);
		CHECK(snapshot->snapshot_ns > 0);
		for (size_t i = 1; i < snapshot->thread_count; i++)
			CHECK(snapshot->threads[i].tid > snapshot->threads[i - 1].tid);
		for (int i = 0; i < BLOCKED; i++)
			check_blocked(snapshot, i);
		check_futex(snapshot);
	}
	stall_snapshot_destroy(previous);
}

static void test_limits(void *state, struct stall_arena *arena, pid_t child)
{
	struct stall_snapshot_options options;
	struct stall_snapshot *snapshot = NULL;

	stall_snapshot_options_init(&options);
	options.max_stack = 512;
	options.max_threads = 10;
	options.kernel_stacks = false;
	stall_arena_reset(arena, SIZE_MAX);
	CHECK_OK(stall_snapshot_create(arena, &child, 1, NULL, &snapshot));
	CHECK_OK(stall_backend_bpf.capture(state, snapshot, &options));
	CHECK_INT(snapshot->thread_count, 10);
	CHECK_INT(snapshot->processes[0].threads_lost, BLOCKED + 1 - 10);
	CHECK_INT(snapshot->note_count, 2);
	CHECK_STRING(snapshot->notes[0].code, "threads-limit");
	CHECK_STRING(snapshot->notes[1].code, "threads-lost");
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		CHECK(snapshot->threads[i].stack_size <= 512 + 128);
		CHECK_INT(snapshot->threads[i].kernel_frame_count, 0);
		CHECK_INT(snapshot->threads[i].label, STALL_TRUNCATED);
	}
	stall_snapshot_destroy(snapshot);

	// An arena of one page holds no stack.
	struct stall_arena small;
	stall_snapshot_options_init(&options);
	CHECK_OK(stall_arena_init(&small, 1));
	CHECK_OK(stall_snapshot_create(&small, &child, 1, NULL, &snapshot));
	CHECK_OK(stall_backend_bpf.capture(state, snapshot, &options));
	CHECK(snapshot->note_count && !strcmp(snapshot->notes[0].code, "arena-full"));
	stall_snapshot_destroy(snapshot);
	stall_arena_deinit(&small);
}

int main(void)
{
	struct stall_snapshot_options options;
	struct stall_arena arena;
	void *state = NULL;

	stall_snapshot_options_init(&options);
	struct stall_error *err = stall_backend_bpf.check(&options);
	if (err)
		return check_missing("bpf", err->message);
	CHECK_OK(stall_backend_bpf.open(&options, &state));
	CHECK_OK(stall_arena_init(&arena, 256UL << 20));
	facts = (void *)arena.base + (128UL << 20); // shared, far from the copies
	pid_t child = fork();
	if (child == 0)
		child_main();
	wait_until_blocked(child);
	test_known_threads(state, &arena, child);
	test_limits(state, &arena, child);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	stall_backend_bpf.close(state);
	stall_arena_deinit(&arena);
	return check_done();
}

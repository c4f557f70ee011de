// SPDX-License-Identifier: Apache-2.0
// Threads that rewrite their stacks all the time: a copy that is called exact must be of one moment.
#include "snapshot/backend.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define WRITERS 60
#define WORDS 1500
#define CAPTURES 80

static struct writer {
	pid_t tid;
	uint64_t words;
} * writers;

// Writes one number after the other into all words, upward. At any moment the words hold a number
// up to some place, and the number before it from there on.
static void *write_words(void *arg)
{
	struct writer *writer = arg;
	volatile uint64_t words[WORDS] = {};
	size_t kind = writer - writers;

	writer->words = (uintptr_t)words;
	__atomic_store_n(&writer->tid, gettid(), __ATOMIC_RELEASE);
	for (uint64_t number = 1;; number++) {
		for (int i = 0; i < WORDS; i++)
			words[i] = number;
		// All with the short nap take both CPUs of a small machine, and on one that is busy
		// with other things hardly one is off them for as long as a copy takes.
		if (kind < 2)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = kind % 2 ? 200000 : 2000000}, NULL);
	}
	return NULL;
}

static void child_main(void)
{
	pthread_t thread;

	for (int i = 0; i < WRITERS; i++)
		pthread_create(&thread, NULL, write_words, &writers[i]);
	for (;;)
		pause();
}

static const struct writer *find_writer(pid_t tid)
{
	for (int i = 0; i < WRITERS; i++) {
		if (writers[i].tid == tid)
			return &writers[i];
	}
	return NULL;
}

// Whether the words in the copy are of one moment; -1: the copy does not reach them.
static int is_of_one_moment(const struct stall_thread *thread, const struct writer *writer)
{
	uint64_t words[WORDS], offset = writer->words - thread->stack_address;

	if (writer->words < thread->stack_address || offset + sizeof(words) > thread->stack_size)
		return -1;
	memcpy(words, thread->stack + offset, sizeof(words));
	for (int i = 1; i < WORDS; i++) {
		if (words[i] > words[i - 1] || words[0] - words[i] > 1)
			return 0;
	}
	return 1;
}

int main(void)
{
	struct stall_snapshot_options options;
	struct stall_snapshot *previous = NULL, *snapshot = NULL;
	struct stall_arena arena;
	void *state = NULL;
	size_t labels[4] = {}, torn[4] = {}, unreached = 0;

	stall_snapshot_options_init(&options);
	struct stall_error *err = stall_backend_bpf.check(&options);
	if (err)
		return check_missing("bpf", err->message);
	CHECK_OK(stall_backend_bpf.open(&options, &state));
	CHECK_OK(stall_arena_init(&arena, 64UL << 20));
	writers = (void *)(arena.base + (32UL << 20)); // shared, far from the copies
	pid_t child = fork();
	if (child == 0)
		child_main();
	for (int i = 0; i < WRITERS; i++) {
		while (!__atomic_load_n(&writers[i].tid, __ATOMIC_ACQUIRE))
			sched_yield();
	}
	for (int i = 0; i < CAPTURES; i++) {
		stall_arena_reset(&arena, 32UL << 20);
		CHECK_OK(stall_snapshot_create(&arena, &child, 1, previous, &snapshot));
		CHECK_OK(stall_backend_bpf.capture(state, snapshot, &options));
		stall_snapshot_destroy(previous);
		previous = snapshot;
		for (size_t j = 0; j < snapshot->thread_count; j++) {
			const struct stall_thread *thread = &snapshot->threads[j];
			const struct writer *writer = find_writer(thread->tid);

			if (!writer || !thread->stack_size)
				continue;
			int exact = is_of_one_moment(thread, writer);
			labels[thread->label]++;
			unreached += exact < 0;
			torn[thread->label] += exact == 0;
		}
	}
	printf("verified %zu, torn %zu; running %zu, torn %zu; raced %zu, torn %zu\n",
	       labels[STALL_VERIFIED], torn[STALL_VERIFIED], labels[STALL_RUNNING],
	       torn[STALL_RUNNING], labels[STALL_RACED], torn[STALL_RACED]);
	CHECK(labels[STALL_VERIFIED] >
	      CAPTURES * WRITERS / 10); // on a machine busy with other things
	CHECK_INT(torn[STALL_VERIFIED], 0);
	CHECK_INT(torn[STALL_RUNNING], 0);
	CHECK_INT(labels[STALL_TRUNCATED], 0);
	CHECK_INT(unreached, 0);
	stall_snapshot_destroy(previous);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	stall_backend_bpf.close(state);
	stall_arena_deinit(&arena);
	return check_done();
}

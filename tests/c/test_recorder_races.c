// SPDX-License-Identifier: Apache-2.0
// Threads that write, and begin and end, while a reader reads: each slot, stack and record that it
// gets is of one wait. And so it is when they are killed at any moment.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "recording.h"

#define WRITERS 6
#define OBJECTS 4
#define WAITS 400 // of a thread, in a life
#define ROUNDS 20
#define ROOM 65536
#define DEADLINE_S 240 // also on a slow and busy machine
#define SCRIBBLES 50000

// What is recorded of a wait follows from its object: the size is a multiple of it, and the value
// is where the description of the wait itself lies on the stack.
#define FACTOR 5

static uint64_t objects[OBJECTS][8];

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* The scene: writes until it is killed. */

__attribute__((noinline)) static void wait_at_random(uint64_t *random)
{
	uint64_t number = next_random(random);
	uint64_t *object = objects[number % OBJECTS];
	bool has_stack = number >> 8 & 1, is_cond = number >> 9 & 1, lasts = number >> 10 & 1;
	volatile char depth[1 + (number >> 16 & 0xfff)];
	struct recorder_wait wait = {
		.kind = STALL_WAIT_FUTEX,
		.operation = is_cond ? STALL_RING_COND_WAIT : STALL_RING_MUTEX_LOCK,
		.object = (uintptr_t)object,
		.fd = -1,
		.value = (uintptr_t)&wait,
		.size = (uintptr_t)object * FACTOR,
	};
	struct recorder_place place;

	depth[0] = 1;
	struct recorder_thread *thread = recorder_enter();
	hook_here(&place);
	if (!thread)
		return;
	recorder_begin(thread, &wait, &place, has_stack);
	if (lasts)
		recorder_still_waits(thread, &place);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	recorder_release(wait.object, STALL_RING_MUTEX_UNLOCK, &place);
	asm volatile("" ::"r"(depth), "r"(&wait) : "memory");
}

static void *write_for_a_while(void *arg)
{
	uint64_t random = (uintptr_t)arg;

	for (int i = 0; i < WAITS; i++)
		wait_at_random(&random);
	if (next_random(&random) & 1) // others do not end their wait
		recorder_thread_ends();
	return NULL;
}

__attribute__((noreturn)) static void run_writers(const char *seed)
{
	uint64_t random = strtoull(seed, NULL, 10) * 2 + 1;
	pthread_t threads[WRITERS];

	printf("begins\n");
	fflush(stdout);
	for (unsigned i = 0;; i++) {
		if (i >= WRITERS)
			pthread_join(threads[i % WRITERS], NULL);
		recording_create(&threads[i % WRITERS], NULL, write_for_a_while,
				 (void *)(uintptr_t)(next_random(&random) | 1));
	}
}

/* The reader. */

struct seen {
	uint64_t waits, stacks, ends, wakers, late;
};

static bool is_plausible(const struct stall_wait_key *key, uint64_t size)
{
	return key->kind == STALL_WAIT_FUTEX && key->id && size == key->id * FACTOR;
}

// A wait for a lock that began before there was a ring: it is recorded without these, which locks
// have not. Each writer can be in one.
static bool is_late(uint64_t size, uint64_t value)
{
	return !size && !value;
}

// The description of the wait, in the copy of the stack that it lies on.
static bool has_wait(const uint8_t *stack, uint64_t address, uint32_t size, uint64_t at,
		     uint64_t object)
{
	struct recorder_wait wait;

	if (at < address || at - address + sizeof(wait) > size)
		return false;
	memcpy(&wait, stack + (at - address), sizeof(wait));
	return wait.object == object && wait.value == at && wait.size == object * FACTOR;
}

static void check_slots(struct stall_ring *ring, struct seen *seen)
{
	static uint8_t stack[ROOM];
	struct stall_ring_stack_copy copy;
	struct stall_wait_slot slot;
	size_t count;

	stall_ring_slots(ring, &count);
	for (size_t i = 0; i < count; i++) {
		if (!stall_ring_read_slot(ring, i, &slot) || !(slot.seq & 1) ||
		    is_late(slot.size, slot.value))
			continue;
		seen->waits++;
		CHECK(is_plausible(&slot.key, slot.size));
		if (!stall_ring_read_stack(ring, i, slot.seq, &copy, stack, ROOM))
			continue;
		seen->stacks++;
		CHECK(has_wait(stack, copy.address, copy.size, slot.value, slot.key.id));
	}
}

// False: the next one is being written, or there is none.
static bool check_next_record(struct stall_ring *ring, uint64_t *cursor, struct seen *seen)
{
	static uint8_t stack[ROOM];
	struct stall_ring_record_copy copy;
	uint64_t lost = 0;

	if (!stall_ring_next_record(ring, cursor, &lost, &copy, stack, ROOM))
		return false;
	const struct stall_wait_record *record = &copy.record;
	if (record->type == STALL_RECORD_END && is_late(record->size, record->value)) {
		CHECK(++seen->late <= WRITERS);
	} else if (record->type == STALL_RECORD_END) {
		seen->ends++;
		CHECK(is_plausible(&record->key, record->size));
		CHECK(has_wait(stack, record->stack_address, record->stack_size, record->value,
			       record->key.id));
	} else {
		seen->wakers++;
		CHECK_INT(record->type, STALL_RECORD_WAKER);
		CHECK(record->size > 0 && record->size <= WRITERS);
	}
	return true;
}

static void start_writers(struct recording *scene, const char *directory, uint64_t seed)
{
	// One in a few waits takes that long on a busy machine: records come at their highest rate.
	const char *env[] = {"STALLSCOPE_THRESHOLD=0", NULL};
	char name[32], line[32], path[PATH_MAX];

	snprintf(name, sizeof(name), "%llu", (unsigned long long)seed);
	recording_start(scene, name, directory, env);
	CHECK(recording_read_line(scene, line, sizeof(line)));
	for (time_t end = time(NULL) + DEADLINE_S; time(NULL) < end;) {
		if (recording_rings(directory, scene->pid, path) == 1)
			return;
		usleep(100);
	}
	CHECK(!"a ring in time");
}

static void test_reader(const char *directory, uint64_t seed)
{
	struct recording scene;
	struct seen seen = {};
	uint64_t cursor = 0;

	start_writers(&scene, directory, seed);
	struct stall_ring *ring = recording_open(directory, scene.pid);
	time_t end = time(NULL) + DEADLINE_S;
	while (ring && check_failed < 10 && time(NULL) < end &&
	       (seen.waits < 2000 || seen.stacks < 200 || seen.ends < 500)) {
		check_slots(ring, &seen);
		while (check_next_record(ring, &cursor, &seen))
			;
	}
	printf("checked %llu waits, %llu stacks, %llu ends and %llu releases\n",
	       (unsigned long long)seen.waits, (unsigned long long)seen.stacks,
	       (unsigned long long)seen.ends, (unsigned long long)seen.wakers);
	CHECK(seen.waits >= 2000 && seen.stacks >= 200 && seen.ends >= 500);
	CHECK_INT(recording_end(&scene, SIGKILL), -SIGKILL);
	CHECK_STRING(scene.text, "");
	unlink(stall_ring_path(ring));
	stall_ring_close(ring);
}

static void test_kill(const char *directory, uint64_t seed)
{
	uint64_t random = seed * 2 + 1, waits = 1 + next_random(&random) % 5000, cursor = 0;
	struct recording scene;
	struct seen seen = {};
	uint64_t unfinished = 0;

	start_writers(&scene, directory, next_random(&random));
	struct stall_ring *ring = recording_open(directory, scene.pid);
	if (!ring)
		return;
	volatile struct stall_ring_header *live = stall_ring_live(ring);
	time_t end = time(NULL) + DEADLINE_S;
	// Of more records than writers some are whole.
	while ((live->waits < waits || live->head <= 2 * WRITERS) && time(NULL) < end)
		;
	CHECK_INT(recording_end(&scene, SIGKILL), -SIGKILL);
	check_slots(ring, &seen);
	for (uint64_t head = live->head; cursor < head;) {
		if (!check_next_record(ring, &cursor, &seen)) {
			unfinished++;
			cursor++;
		}
	}
	// A writer that finds its cell being written leaves it.
	CHECK(unfinished <= WRITERS + live->lost[STALL_LOST_RING_FULL]);
	CHECK(seen.ends + seen.wakers > 0);
	unlink(stall_ring_path(ring));
	stall_ring_close(ring);
}

// A process that may write the file may write anything: no writer believes it.
static void test_scribble(const char *directory, uint64_t seed)
{
	uint64_t random = seed * 2 + 1;
	struct recording scene;
	char path[PATH_MAX];
	struct stat st;

	start_writers(&scene, directory, seed);
	CHECK_INT(recording_rings(directory, scene.pid, path), 1);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK_INT(fstat(fd, &st), 0);
	uint64_t *words = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	// The header, the slots in use, and what is spread over the whole file.
	for (int i = 0; i < SCRIBBLES && !waitpid(scene.pid, NULL, WNOHANG); i++) {
		words[next_random(&random) % (sizeof(struct stall_ring_header) / 8)] =
			next_random(&random);
		words[512 + next_random(&random) % (24 * WRITERS)] = next_random(&random);
		if (i % 50)
			continue;
		words[next_random(&random) % (st.st_size / 8)] = next_random(&random);
		sched_yield();
	}
	CHECK_INT(recording_end(&scene, SIGKILL), -SIGKILL);
	CHECK_STRING(scene.text, "");
	munmap(words, st.st_size);
	close(fd);
	unlink(path);
}

int main(int argc, char **argv)
{
	const char *given = getenv("SEED");
	uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) ^ getpid();
	char directory[PATH_MAX];

	if (argc > 1)
		run_writers(argv[1]);
	printf("SEED=%llu\n", (unsigned long long)seed);
	recording_make_directory(directory);
	test_reader(directory, seed);
	for (int i = 0; i < ROUNDS; i++)
		test_kill(directory, seed + i);
	test_scribble(directory, seed);
	recording_remove_directory(directory);
	return check_done();
}

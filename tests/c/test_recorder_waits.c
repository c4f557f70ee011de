// SPDX-License-Identifier: Apache-2.0
// What is written of a wait: slot, stat, stack, records, marks; and what is not, where there is no
// room or a thread left in the middle.
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "recording.h"

#define MS 1000000ULL
#define ROOM 65536
// The default threshold: no wait is as long, however late its thread gets to its end. A record of a
// wait has the words around its object, and some objects here are no memory.
#define NEVER (1000000 * MS)
#define RELEASE_PAUSE (100 * MS) // KEY_PAUSE_NS of recorder_records.c

static char directory[PATH_MAX];

static struct stall_ring *own_ring(void)
{
	static struct stall_ring *ring;

	if (!ring) {
		recording_wait_once();
		ring = recording_open(directory, getpid());
	}
	return ring;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static size_t own_slot(void)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(own_ring(), &count);

	for (size_t i = 0; i < count; i++)
		if (slots[i].tid == syscall(SYS_gettid))
			return i;
	return SIZE_MAX;
}

// Copied; tag 0: there is none.
static struct stall_wait_stat stat_of(uint64_t object, uint32_t kind)
{
	struct stall_wait_stat none = {};
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	for (size_t i = 0; i < count; i++)
		if (stats[i].key.id == object && stats[i].key.kind == kind && stats[i].used)
			return *(struct stall_wait_stat *)&stats[i];
	return none;
}

static void set_role(uint64_t object, enum stall_wait_role role)
{
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	for (size_t i = 0; i < count; i++)
		if (stats[i].key.id == object)
			stats[i].role = role;
}

static void set_threshold(uint64_t ns)
{
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		stall_ring_live(own_ring())->threshold_ns[i] = ns;
}

static uint64_t lost(enum stall_wait_lost cause)
{
	return stall_ring_live(own_ring())->lost[cause];
}

static uint64_t cursor; // of records
static struct stall_ring_record_copy last;
static uint8_t last_stack[ROOM];

static bool next_record(void)
{
	uint64_t missed = 0;

	return stall_ring_next_record(own_ring(), &cursor, &missed, &last, last_stack, ROOM);
}

static void pass_records(void)
{
	while (next_record())
		;
}

static struct recorder_wait cond_wait(const void *object)
{
	struct recorder_wait wait = recording_lock(object);

	wait.operation = STALL_RING_COND_WAIT;
	return wait;
}

static void test_slot(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct recorder_wait wait = recording_lock(&mutex);
	struct recorder_place place;
	struct stall_wait_slot slot;
	uint64_t before = now_ns();

	struct recorder_thread *thread = recorder_enter();
	hook_here(&place);
	recorder_begin(thread, &wait, &place, false);
	CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot));
	CHECK(slot.seq & 1);
	CHECK_INT(slot.tid, syscall(SYS_gettid));
	CHECK_INT(slot.tgid, getpid());
	CHECK_INT(slot.key.id, (uintptr_t)&mutex);
	CHECK_INT(slot.key.kind, STALL_WAIT_FUTEX);
	CHECK_INT(slot.operation, STALL_RING_MUTEX_LOCK);
	CHECK(slot.start_ns >= before && slot.start_ns <= now_ns());
	uint32_t seq = slot.seq;
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot));
	CHECK_INT(slot.seq, seq + 1);
	struct stall_wait_stat stat = stat_of((uintptr_t)&mutex, STALL_WAIT_FUTEX);
	uint64_t count = 0;
	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		count += stat.bucket[i];
	CHECK_INT(count, 1);
	CHECK_INT(stat.role, STALL_ROLE_MUTEX);
	CHECK(stat.total_ns && stat.max_ns == stat.total_ns && stat.last_ns >= slot.start_ns);
	CHECK_INT(stat.tag, stall_wait_tag(&stat.key));
	CHECK_INT(stat.bucket[63 - __builtin_clzll(stat.total_ns)], 1);
	CHECK_INT(stat.over, 0);
}

// The copy is what lies on the stack; `regs` are those of this frame.
static void check_stack(const uint8_t *stack, uint32_t size, uint64_t address, uint64_t whole,
			const __u64 *regs, const struct recorder_place *place)
{
	uintptr_t marker = (uintptr_t)place; // in this frame's caller
	uintptr_t end;

	asm("movq %%fs:0, %0" : "=r"(end));
	CHECK_INT(address, place->sp);
	CHECK_INT(regs[STALL_BPF_SP], place->sp);
	CHECK_INT(regs[STALL_BPF_IP], place->ip);
	CHECK_INT(regs[STALL_BPF_BX], place->bx);
	CHECK_INT(regs[STALL_BPF_R15], place->r15);
	CHECK(marker >= address && marker + sizeof(*place) <= address + size);
	CHECK(!memcmp(stack + (marker - address), place, sizeof(*place)));
	if (syscall(SYS_gettid) != getpid())
		CHECK_INT(address + whole, end);
	CHECK(whole >= size || !whole);
}

__attribute__((noinline)) static void wait_with_stack(uint64_t *object)
{
	struct recorder_wait wait = cond_wait(object);
	struct stall_ring_stack_copy copy;
	struct recorder_place place;
	static uint8_t stack[ROOM];
	struct stall_wait_slot slot;

	struct recorder_thread *thread = recorder_enter();
	hook_here(&place);
	object[0] = 0x1122334455667788;
	recorder_begin(thread, &wait, &place, true);
	CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot));
	CHECK(stall_ring_read_stack(own_ring(), own_slot(), slot.seq, &copy, stack, ROOM));
	check_stack(stack, copy.size, copy.address, copy.whole, copy.regs, &place);
	CHECK(copy.size == copy.whole);
	CHECK_INT(*(uint64_t *)(copy.words + 16), 0x1122334455667788);
	CHECK(copy.words_ns);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	CHECK(!stall_ring_read_stack(own_ring(), own_slot(), slot.seq, &copy, stack, ROOM));
}

static void *test_stack(void *arg)
{
	bool is_first_thread = syscall(SYS_gettid) == getpid();
	uint64_t object[8] = {};
	// At the very beginning of a page, before which there is none.
	uint8_t *pages = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mprotect(pages + 4096, 4096, PROT_READ | PROT_WRITE);
	own_ring();
	wait_with_stack(object + 2);
	wait_with_stack((uint64_t *)(pages + 4096));
	munmap(pages, 8192);
	if (!is_first_thread)
		recorder_thread_ends();
	return arg;
}

// A mutex gets a stack, and its words again, when the wait has lasted.
static void test_still_waits(void)
{
	uint64_t object[8] = {};
	struct recorder_wait wait = recording_lock(object + 2);
	struct stall_ring_stack_copy copy;
	struct recorder_place place;
	static uint8_t stack[ROOM];
	struct stall_wait_slot slot;

	struct recorder_thread *thread = recorder_enter();
	hook_here(&place);
	recorder_begin(thread, &wait, &place, false);
	CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot));
	CHECK(!stall_ring_read_stack(own_ring(), own_slot(), slot.seq, &copy, stack, ROOM));
	CHECK(!recorder_is_marked(wait.object));
	for (uint64_t owner = 1; owner < 4; owner++) {
		object[3] = owner;
		recorder_still_waits(thread, &place);
		CHECK(stall_ring_read_stack(own_ring(), own_slot(), slot.seq, &copy, stack, ROOM));
		check_stack(stack, copy.size, copy.address, copy.whole, copy.regs, &place);
		CHECK_INT(*(uint64_t *)(copy.words + 24), owner);
		CHECK(recorder_is_marked(wait.object));
		CHECK_INT(stat_of(wait.object, STALL_WAIT_FUTEX).marked, 1);
	}
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	CHECK(!recorder_is_marked(wait.object));
	CHECK_INT(stat_of(wait.object, STALL_WAIT_FUTEX).marked, 0);
}

static void test_end_record(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct recorder_wait wait = recording_lock(&mutex);
	struct recorder_place place;

	set_threshold(0);
	pass_records();
	struct recorder_thread *thread = recorder_enter();
	hook_here(&place);
	recorder_begin(thread, &wait, &place, false);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	CHECK(next_record());
	CHECK_INT(last.record.type, STALL_RECORD_END);
	CHECK_INT(last.record.key.id, wait.object);
	CHECK_INT(last.record.tid, syscall(SYS_gettid));
	CHECK(last.record.now_ns > last.record.start_ns);
	check_stack(last_stack, last.record.stack_size, last.record.stack_address, last.whole,
		    last.record.regs, &place);
	CHECK_INT(stat_of(wait.object, STALL_WAIT_FUTEX).over, 1);
	set_threshold(NEVER);
	recording_wait(&wait, false);
	CHECK(!next_record());
}

// The first wait records what a condition is; an idle one records nothing more.
static void test_conditions(void)
{
	uint64_t object[8] = {};
	struct recorder_wait wait = cond_wait(object);

	pass_records();
	recording_wait(&wait, true);
	CHECK(next_record());
	CHECK(last.record.flags & STALL_SLOT_FIRST);
	recording_wait(&wait, true);
	CHECK(!next_record());
	set_threshold(0);
	set_role(wait.object, STALL_ROLE_COND);
	uint64_t rate = lost(STALL_LOST_RATE);
	for (int i = 0; i < 100; i++)
		recording_wait(&wait, true);
	CHECK(!next_record());
	CHECK_INT(lost(STALL_LOST_RATE), rate);
	set_role(wait.object, STALL_ROLE_UNKNOWN);
	uint64_t start = now_ns();
	for (int i = 0; i < 100; i++)
		recording_wait(&wait, true);
	uint64_t pauses = (now_ns() - start) / (100 * MS);
	int records = 0;
	while (next_record())
		records++;
	CHECK((uint64_t)records <= 1 + pauses); // its first was a moment ago
	CHECK_INT(lost(STALL_LOST_RATE), rate + 100 - records);
	set_threshold(NEVER);
}

static void test_files(void)
{
	char path[PATH_MAX + 16], name[400];
	struct stall_ring_name found;
	struct stat st;
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	snprintf(path, sizeof(path), "%s/file", directory);
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	CHECK_INT(fstat(fd, &st), 0);
	struct recorder_wait wait = {.kind = STALL_WAIT_FSYNC, .operation = SYS_fsync, .fd = fd};
	recording_wait(&wait, true);
	memset(name, 'x', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	struct recorder_wait gone = {.kind = STALL_WAIT_UNLINK, .fd = -1, .path = name};
	recording_wait(&gone, true);
	unlink(path);
	close(fd);
	bool has_file = false, has_path = false;
	for (size_t i = 0; i < count; i++) {
		if (!stats[i].used || !stall_ring_read_name(own_ring(), i, stats[i].tag, &found))
			continue;
		if (stats[i].key.kind == STALL_WAIT_FSYNC) {
			has_file = true;
			CHECK_STRING(found.path, path);
			CHECK_INT(found.mode, st.st_mode);
			CHECK_INT(stats[i].key.id, st.st_ino);
		} else if (stats[i].key.kind == STALL_WAIT_UNLINK) {
			has_path = true;
			CHECK_INT(strlen(found.path), sizeof(found.path) - 1);
		}
	}
	CHECK(has_file && has_path);
}

static void *wait_and_release(void *arg)
{
	struct recorder_place place;
	uint64_t object = (uintptr_t)arg;

	hook_here(&place);
	recorder_release(object, STALL_RING_MUTEX_UNLOCK, &place);
	recorder_thread_ends();
	return NULL;
}

static void release_by_other(const void *object)
{
	pthread_t other;

	pthread_create(&other, NULL, wait_and_release, (void *)object);
	pthread_join(other, NULL);
}

static void test_release(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct recorder_wait wait = recording_lock(&mutex);
	struct recorder_place place;

	pass_records();
	release_by_other(&mutex);
	CHECK(!next_record()); // nobody waits
	struct recorder_thread *thread = recorder_enter();
	hook_here(&place);
	recorder_begin(thread, &wait, &place, false);
	recorder_still_waits(thread, &place);
	set_threshold(NEVER);
	release_by_other(&mutex);
	CHECK(!next_record()); // nobody has waited for that long
	set_threshold(0);
	release_by_other(&mutex + 1);
	CHECK(!next_record()); // not for this one
	release_by_other(&mutex);
	CHECK(next_record());
	CHECK_INT(last.record.type, STALL_RECORD_WAKER);
	CHECK_INT(last.record.operation, STALL_RING_MUTEX_UNLOCK);
	CHECK_INT(last.record.key.id, wait.object);
	CHECK(last.record.tid != syscall(SYS_gettid) && last.record.stack_size > 0);
	CHECK_INT(last.record.size, 1);
	CHECK(last.record.value > 0);
	uint64_t reported_ns = last.record.now_ns;
	release_by_other(&mutex);
	CHECK(!next_record() || last.record.now_ns - reported_ns >= RELEASE_PAUSE); // so soon
	set_threshold(NEVER);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	pass_records();
}

/* Left in the middle. */

static sigjmp_buf out;
static bool nested_was_refused;

static void on_signal(int number)
{
	struct recorder_thread *thread = recorder_enter();

	nested_was_refused = !thread;
	if (number == SIGUSR2)
		siglongjmp(out, 1);
}

__attribute__((noinline)) static void wait_and_raise(int signal, const void *object)
{
	struct recorder_wait wait = recording_lock(object);
	struct recorder_thread *thread = recorder_enter();
	struct recorder_place place;

	CHECK(thread != NULL);
	hook_here(&place);
	recorder_begin(thread, &wait, &place, true);
	recorder_still_waits(thread, &place);
	raise(signal);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
}

static void test_nested(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	uint64_t missed = lost(STALL_LOST_MISSED);
	struct stall_wait_slot slot;

	signal(SIGUSR1, on_signal);
	wait_and_raise(SIGUSR1, &mutex);
	CHECK(nested_was_refused);
	CHECK_INT(lost(STALL_LOST_MISSED), missed + 1);
	CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot) && !(slot.seq & 1));
	CHECK(recording_wait_once());
}

// Whatever a thread left, the next waits are recorded, and no mark stays behind.
static void test_left(void)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct stall_wait_slot slot;

	signal(SIGUSR2, on_signal);
	for (int i = 0; i < 3; i++) {
		if (!sigsetjmp(out, 1))
			wait_and_raise(SIGUSR2, &mutex);
		CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot) && (slot.seq & 1));
		CHECK(recorder_is_marked((uintptr_t)&mutex));
		CHECK(recording_wait_once());
		CHECK(!recorder_is_marked((uintptr_t)&mutex));
		CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot) && !(slot.seq & 1));
	}
}

/* Stacks that are not the thread's own. */

static void wait_there(void)
{
	recording_wait_once();
}

static void on_other_stack(int number)
{
	recording_wait_once();
}

static void check_other_stack(uintptr_t low, uintptr_t end)
{
	CHECK(next_record());
	CHECK(last.record.stack_address >= low && last.record.stack_address < end);
	CHECK_INT(last.record.stack_address + last.record.stack_size, end);
	CHECK_INT(last.whole, 0);
	pass_records();
}

// Above such a stack nothing may be read: a page that forbids it lies there.
static void test_other_stacks(void)
{
	const size_t size = 64 << 10, guard = 64 << 10;
	uint8_t *map = mmap(NULL, size + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	uintptr_t low = (uintptr_t)map;
	ucontext_t here, there;
	stack_t stack = {.ss_sp = map, .ss_size = size}, none = {.ss_flags = SS_DISABLE};
	struct sigaction action = {.sa_handler = on_other_stack, .sa_flags = SA_ONSTACK};

	CHECK_INT(mprotect(map + size, guard, PROT_NONE), 0);
	set_threshold(0);
	pass_records();
	getcontext(&there);
	there.uc_stack = stack;
	there.uc_link = &here;
	makecontext(&there, wait_there, 0);
	swapcontext(&here, &there);
	check_other_stack(low, low + size);
	CHECK_INT(sigaltstack(&stack, NULL), 0);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	check_other_stack(low, low + size);
	sigaltstack(&none, NULL);
	set_threshold(NEVER);
	munmap(map, size + guard);
}

/* No room. */

static void *wait_once(void *arg)
{
	recording_wait_once();
	pthread_barrier_wait(arg);
	pthread_barrier_wait(arg);
	return (void *)syscall(SYS_gettid); // says nothing of its end
}

// The kernel has it for a moment longer than pthread_join(3) waits.
static void join_uncancelled(pthread_t thread)
{
	void *tid;

	pthread_join(thread, &tid);
	while (!syscall(SYS_tgkill, getpid(), (pid_t)(intptr_t)tid, 0))
		usleep(100);
}

static int slots_in_use(void)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(own_ring(), &count);
	int used = 0;

	for (size_t i = 0; i < count; i++)
		used += slots[i].tid != 0;
	return used;
}

// 8 slots in all. Those of threads that are gone are found, though nobody gave them back.
static void test_slots(void)
{
	pthread_barrier_t barrier;
	pthread_t threads[10];

	CHECK_INT(stall_ring_header(own_ring())->slot_count, 8);
	pthread_barrier_init(&barrier, NULL, 11);
	for (int round = 0; round < 3; round++) {
		uint64_t before = lost(STALL_LOST_SLOTS_FULL);
		for (int i = 0; i < 10; i++)
			pthread_create(&threads[i], NULL, wait_once, &barrier);
		pthread_barrier_wait(&barrier);
		CHECK_INT(slots_in_use(), 8);
		CHECK_INT(lost(STALL_LOST_SLOTS_FULL), before + 3); // this thread has one
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < 10; i++)
			join_uncancelled(threads[i]);
	}
}

// A table that is full counts by kind alone, and what a reader retired is used again.
static void test_stats(void)
{
	uint32_t stat_count = stall_ring_header(own_ring())->stat_count;
	uint64_t full = lost(STALL_LOST_KEYS_FULL);
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	CHECK_INT(count, stat_count); // those of the kinds lie behind
	for (uint64_t i = 1; i <= stat_count * 2; i++) {
		struct recorder_wait wait = recording_lock((void *)(i << 12));
		recording_wait(&wait, false);
	}
	uint64_t in_table = 0, in_kind = 0;
	for (int bucket = 0; bucket < STALL_WAIT_BUCKETS; bucket++) {
		in_kind += stats[stat_count + STALL_WAIT_FUTEX].bucket[bucket];
		for (size_t i = 0; i < stat_count; i++)
			if (stats[i].key.id && stats[i].key.id <= (uint64_t)stat_count * 2 << 12)
				in_table += stats[i].bucket[bucket];
	}
	CHECK_INT(in_kind, lost(STALL_LOST_KEYS_FULL) - full);
	CHECK_INT(in_table + in_kind, stat_count * 2);
	CHECK(in_kind >= stat_count);
	struct recorder_wait again = recording_lock((void *)(1ULL << 12));
	struct stall_wait_stat first = stat_of(again.object, STALL_WAIT_FUTEX);
	for (size_t i = 0; i < stat_count; i++) // what a reader does
		if (stats[i].tag == first.tag)
			stats[i].tag = STALL_TAG_RETIRED;
	full = lost(STALL_LOST_KEYS_FULL);
	recording_wait(&again, false);
	CHECK_INT(lost(STALL_LOST_KEYS_FULL), full + 1);
	for (size_t i = 0; i < stat_count; i++) {
		if (stats[i].tag == STALL_TAG_RETIRED) {
			memset((void *)&stats[i].key, 0,
			       sizeof(*stats) - offsetof(struct stall_wait_stat, key));
			__atomic_store_n(&stats[i].tag, 0, __ATOMIC_SEQ_CST);
		}
	}
	recording_wait(&again, false);
	CHECK_INT(lost(STALL_LOST_KEYS_FULL), full + 1);
	CHECK_INT(stat_of(again.object, STALL_WAIT_FUTEX).role, STALL_ROLE_MUTEX);
}

// The oldest are overwritten, and counted by who reads; more than a thousand a second are refused.
static void test_wrap(void)
{
	uint32_t cells = stall_ring_header(own_ring())->cell_count;
	uint64_t missed = 0, start = now_ns(), rate = lost(STALL_LOST_RATE), records = 0;

	set_threshold(0);
	recording_wait_once(); // a cursor of 0 would be the oldest that there is
	uint64_t from = stall_ring_live(own_ring())->head;
	while (stall_ring_live(own_ring())->head - from < cells + 10)
		recording_wait_once();
	for (int i = 0; i < 2000; i++)
		recording_wait_once();
	uint64_t made = stall_ring_live(own_ring())->head - from;
	uint64_t ms = (now_ns() - start) / MS;
	CHECK(made <= ms + 127);
	CHECK(lost(STALL_LOST_RATE) > rate);
	set_threshold(NEVER);
	cursor = from;
	while (stall_ring_next_record(own_ring(), &cursor, &missed, &last, last_stack, ROOM))
		records++;
	CHECK_INT(records, cells);
	CHECK_INT(missed, made - cells);
}

/* A thousand threads. */

#define MANY 1000
#define DEPTH 20000 // of each stack

static pthread_barrier_t all;

__attribute__((noinline)) static void wait_for_all(uint64_t *object)
{
	struct recorder_wait wait = cond_wait(object);
	struct recorder_thread *thread = recorder_enter();
	struct recorder_place place;

	hook_here(&place);
	recorder_begin(thread, &wait, &place, true);
	pthread_barrier_wait(&all);
	pthread_barrier_wait(&all);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
}

static void *wait_deep(void *arg)
{
	volatile char depth[DEPTH];
	uint64_t object[8] = {};

	depth[0] = depth[DEPTH - 1] = 1;
	wait_for_all(object + 2);
	recorder_thread_ends();
	return depth[0] ? arg : NULL;
}

static void check_memory(void)
{
	static uint8_t stack[ROOM];
	struct stall_ring_stack_copy copy;
	struct stall_wait_slot slot;
	size_t count, stacks = 0, least = SIZE_MAX, most = 0;
	struct stat st;

	stall_ring_slots(own_ring(), &count);
	for (size_t i = 0; i < count; i++) {
		if (!stall_ring_read_slot(own_ring(), i, &slot) || !(slot.seq & 1) ||
		    !stall_ring_read_stack(own_ring(), i, slot.seq, &copy, stack, ROOM))
			continue;
		stacks++;
		least = copy.size < least ? copy.size : least;
		most = copy.size > most ? copy.size : most;
	}
	CHECK_INT(stat(stall_ring_path(own_ring()), &st), 0);
	CHECK_INT(stacks, MANY);
	CHECK(st.st_blocks * 512 <= 16000000);
	fprintf(stderr, "%zu threads: %lld bytes of the ring are in memory, stacks of %zu to %zu\n",
		stacks, (long long)st.st_blocks * 512, least, most);
}

// All have a stack, and all of them together have their place.
static void test_memory(void)
{
	static pthread_t threads[MANY];
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	pthread_barrier_init(&all, NULL, MANY + 1);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i++)
			CHECK_INT(pthread_create(&threads[i], &attr, wait_deep, NULL), 0);
		pthread_barrier_wait(&all);
		check_memory();
		pthread_barrier_wait(&all);
		for (int i = 0; i < MANY; i++)
			pthread_join(threads[i], NULL);
	}
}

/* Scenes. */

static void scene_waits(void)
{
	pthread_t other;

	test_slot();
	test_stack(NULL);
	pthread_create(&other, NULL, test_stack, NULL);
	pthread_join(other, NULL);
	test_still_waits();
	test_end_record();
	test_conditions();
	test_files();
	test_release();
	test_nested();
	test_left();
	test_other_stacks();
}

static const struct {
	const char *name;
	void (*run)(void);
	const char *env;
} scenes[] = {
	{"waits", scene_waits, NULL},  {"slots", test_slots, "STALLSCOPE_THREADS=8"},
	{"stats", test_stats, NULL},   {"wrap", test_wrap, NULL},
	{"memory", test_memory, NULL},
};
#define SCENES (sizeof(scenes) / sizeof(scenes[0]))

static int run_scene(const char *name)
{
	snprintf(directory, sizeof(directory), "%s", getenv("STALLSCOPE_RUNTIME_DIR"));
	CHECK(own_ring() != NULL);
	if (own_ring())
		set_threshold(NEVER);
	for (size_t i = 0; i < SCENES && check_failed == 0; i++)
		if (!strcmp(name, scenes[i].name))
			scenes[i].run();
	recorder_exits();
	return check_done();
}

int main(int argc, char **argv)
{
	struct recording scene;
	char line[64];

	if (argc > 1)
		return run_scene(argv[1]);
	recording_make_directory(directory);
	for (size_t i = 0; i < SCENES; i++) {
		const char *env[] = {scenes[i].env, NULL};
		recording_start(&scene, scenes[i].name, directory, env);
		CHECK(recording_read_line(&scene, line, sizeof(line)));
		printf("%s: %s\n", scenes[i].name, line);
		CHECK_INT(recording_end(&scene, 0), 0);
		fputs(scene.text, stderr);
	}
	recording_remove_directory(directory);
	return check_done();
}

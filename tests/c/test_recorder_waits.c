// SPDX-License-Identifier: Apache-2.0
// What is written of a wait: slot, stat, stack, records, marks; and what is not, where a thread was
// interrupted in the middle.
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>

#include "own_ring.h"

#define RELEASE_PAUSE (100 * MS) // KEY_PAUSE_NS of recorder_records.c

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

static uint64_t count_of(const struct stall_wait_stat *stat)
{
	uint64_t count = 0;

	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		count += stat->bucket[i];
	return count;
}

// The first call measures; the next ones need not.
static struct recorder_thread *begin_transfer(const struct recorder_wait *wait,
					      struct recorder_place *place)
{
	struct recorder_thread *thread;

	while (!(thread = recorder_begin_transfer(wait, place)))
		recording_wait(wait, false);
	return thread;
}

static void test_transfers(void)
{
	char path[PATH_MAX + 16];
	struct recorder_place place;
	struct stall_wait_slot slot;
	struct stat st;

	snprintf(path, sizeof(path), "%s/transfers", directory);
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	CHECK_INT(fstat(fd, &st), 0);
	struct recorder_wait wait = {
		.kind = STALL_WAIT_READ, .operation = SYS_pread64, .fd = fd, .value = 7, .size = 9};
	hook_here(&place);
	set_threshold(NEVER);
	for (int i = 0; i < 1000; i++) {
		uint64_t before = now_ns();
		struct recorder_thread *thread = begin_transfer(&wait, &place);
		CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot));
		CHECK(slot.seq & 1);
		CHECK_INT(slot.key.id, st.st_ino);
		CHECK_INT(slot.key.kind, STALL_WAIT_READ);
		CHECK(slot.operation == SYS_pread64 && slot.value == 7 && slot.size == 9);
		// By a clock that may be a tick late.
		CHECK(slot.start_ns <= now_ns() && slot.start_ns + 20 * MS > before);
		if (!recorder_end_transfer(thread, 3)) {
			recorder_end(thread, 3, 3);
			recorder_leave(thread);
		}
		CHECK(stall_ring_read_slot(own_ring(), own_slot(), &slot));
		CHECK(!(slot.seq & 1));
	}
	recording_wait_once(); // counts what is pending
	struct stall_wait_stat stat = stat_of(st.st_ino, STALL_WAIT_READ);
	CHECK_INT(stat.bytes, 3000);
	CHECK(count_of(&stat) > 1000);
	CHECK_INT(stat.over, 0);

	// One that blocks is measured.
	set_threshold(30 * MS);
	pass_records();
	struct recorder_thread *thread = begin_transfer(&wait, &place);
	usleep(40000);
	CHECK(!recorder_end_transfer(thread, 3));
	recorder_end(thread, 3, 3);
	recorder_leave(thread);
	CHECK(next_record());
	CHECK_INT(last.record.type, STALL_RECORD_END);
	CHECK_INT(last.record.key.id, st.st_ino);
	CHECK_INT(last.record.operation, SYS_pread64);
	CHECK_INT(last.record.regs[STALL_BPF_SP], place.sp);
	CHECK(last.record.now_ns - last.record.start_ns >= 40 * MS);
	CHECK_INT(stat_of(st.st_ino, STALL_WAIT_READ).over, 1);
	CHECK(!recorder_begin_transfer(&wait, &place)); // the next one is measured
	begin_transfer(&wait, &place);
	CHECK(!recorder_begin_transfer(&wait, &place)); // as in a signal handler
	recorder_end(thread, -EIO, 0);
	recorder_leave(thread);
	set_threshold(10 * MS); // shorter than two ticks of a slow clock may be
	recording_wait(&wait, false);
	CHECK(!recorder_begin_transfer(&wait, &place));
	set_threshold(NEVER);
	unlink(path);
	close(fd);
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

	recording_create(&other, NULL, wait_and_release, (void *)object);
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

// Of such a stack only the page that the thread runs on is copied.
static void check_other_stack(uintptr_t low, uintptr_t end)
{
	CHECK(next_record());
	CHECK(last.record.stack_address >= low && last.record.stack_address < end);
	CHECK_INT(last.record.stack_address + last.record.stack_size,
		  (last.record.stack_address | 4095) + 1);
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

static void run_all(void)
{
	pthread_t other;

	test_slot();
	test_stack(NULL);
	recording_create(&other, NULL, test_stack, NULL);
	pthread_join(other, NULL);
	test_still_waits();
	test_end_record();
	test_conditions();
	test_files();
	test_transfers();
	test_release();
	test_nested();
	test_left();
	test_other_stacks();
}

int main(int argc, char **argv)
{
	static const struct scene scenes[] = {{"waits", run_all, NULL}};

	return run_scenes(scenes, 1, argc, argv);
}

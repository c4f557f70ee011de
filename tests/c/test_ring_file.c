// SPDX-License-Identifier: Apache-2.0
// Rings are hostile: each check of the header by itself, what changes while it is read, and a file
// that is cut under the reader. Links, pipes and rings of other users: tests/unit/test_rings.py.
#include "check.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ring_image.h"
#include "rings/ring_file.h"
#include "rings/ring_releases.h"
#include "rings/ring_threads.h"
#include "rings/ring_words.h"

static char folder[] = "/tmp/stall-ring-XXXXXX";
static char path[64];
static struct stall_arena arena; // of what is copied

static struct stall_ring *open_image(const struct ring_image *image)
{
	struct stall_ring *ring = NULL;

	CHECK(image_write(image, path, image->header->file_size));
	CHECK_OK(stall_ring_open(path, true, &ring));
	return ring;
}

static void check_refused(const struct ring_image *image, size_t size, const char *why)
{
	struct stall_ring *ring = NULL;

	CHECK(image_write(image, path, size));
	struct stall_error *err = stall_ring_open(path, false, &ring);
	CHECK(err && strstr(err->message, why));
	if (err && !strstr(err->message, why))
		fprintf(stderr, "\"%s\" is not about \"%s\"\n", err->message, why);
	CHECK(!ring);
	stall_ring_close(ring);
	stall_error_destroy(err);
}

struct damage {
	size_t offset, size; // of a field of the header
	uint64_t value;
	const char *why;
};
#define FIELD(name)                                                                                \
	offsetof(struct stall_ring_header, name), sizeof(((struct stall_ring_header *)0)->name)

static void test_headers(void)
{
	static const struct damage damages[] = {
		{FIELD(magic), 0, "not a ring"},
		{FIELD(version), STALL_RING_VERSION + 1, "version"},
		{FIELD(version), 0, "version"},
		{FIELD(header_size), 0, "header"},
		{FIELD(header_size), sizeof(struct stall_ring_header) + 8, "header"},
		{FIELD(file_size), 0, "longer"},
		{FIELD(file_size), 1 << 30, "cut"},
		{FIELD(file_size), UINT64_MAX, "cut"},
		{FIELD(slot_count), 0, "number"},
		{FIELD(slot_count), STALL_RING_MAX_SLOTS + 1, "number"},
		{FIELD(slot_count), STALL_RING_MAX_SLOTS, "fit"},
		{FIELD(slot_count), UINT32_MAX, "number"},
		{FIELD(stat_count), 0, "number"},
		{FIELD(stat_count), 17, "number"},
		{FIELD(stat_count), UINT32_MAX, "number"},
		{FIELD(stat_count), STALL_RING_MAX_STATS, "fit"},
		{FIELD(cell_count), 0, "number"},
		{FIELD(cell_count), 12, "number"},
		{FIELD(cell_count), UINT32_C(1) << 31, "number"},
		{FIELD(cell_count), STALL_RING_MAX_CELLS, "fit"},
		{FIELD(stack_stride), 0, "size"},
		{FIELD(stack_stride), sizeof(struct stall_ring_stack) - 8, "size"},
		{FIELD(stack_stride), sizeof(struct stall_ring_stack) + 4, "size"},
		{FIELD(stack_stride), UINT32_MAX, "size"},
		{FIELD(stack_stride), 16 << 20, "fit"},
		{FIELD(cell_stride), 8, "size"},
		{FIELD(cell_stride), UINT32_MAX - 7, "size"},
		{FIELD(maps_stride), 8, "size"},
		{FIELD(maps_stride), 15 << 20, "fit"},
		{FIELD(slots_offset), 0, "fit"},
		{FIELD(slots_offset), 8, "fit"},
		{FIELD(slots_offset), UINT64_MAX - 4095, "fit"},
		{FIELD(stacks_offset), 4096, "fit"},
		{FIELD(stats_offset), 4097, "fit"},
		{FIELD(names_offset), UINT64_MAX, "fit"},
		{FIELD(records_offset), 4096, "fit"},
		{FIELD(maps_offset), 1 << 20, "fit"},
		{FIELD(maps_offset), UINT64_C(1) << 63, "fit"},
		{FIELD(pid), 0, "no process"},
		{FIELD(pid), UINT64_MAX, "no process"},
		{FIELD(kinds), STALL_RING_MAX_KINDS + 1, "number"},
		{FIELD(causes), UINT32_MAX, "number"},
		{FIELD(start_time), UINT64_MAX, "time"},
		{FIELD(created_ns), UINT64_MAX, "time"},
		{FIELD(created_wall_ns), UINT64_MAX, "time"},
	};

	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		struct ring_image image = image_create(getpid(), 1);
		uint64_t size = image.header->file_size;

		memcpy(image.bytes + damages[i].offset, &damages[i].value,
		       damages[i].size < 8 ? damages[i].size : 8);
		check_refused(&image, size, damages[i].why);
		free(image.bytes);
	}
	struct ring_image image = image_create(getpid(), 1);
	check_refused(&image, 100, "not a ring");
	check_refused(&image, sizeof(struct stall_ring_header), "cut");
	free(image.bytes);
}

// As a library of version 1 has written it: by its own offsets, thresholds and losses within the
// header.
static void test_version_1(void)
{
	struct ring_image image = image_create(getpid(), 1);
	uint64_t thresholds[13], losses[11];
	const uint32_t version = 1, size = 832;

	for (unsigned i = 0; i < 13; i++)
		thresholds[i] = 1000 + i;
	for (unsigned i = 0; i < 11; i++)
		losses[i] = 100 + i;
	memset(image.bytes + 472, 0, STALL_RING_PAGE - 472);
	memcpy(image.bytes + 8, &version, 4);
	memcpy(image.bytes + 12, &size, 4);
	memcpy(image.bytes + 512, "\1", 1); // enabled
	memcpy(image.bytes + 520, thresholds, sizeof(thresholds));
	memcpy(image.bytes + 640, "\1", 1); // STALL_RING_LIVE
	memcpy(image.bytes + 664, losses, sizeof(losses));
	memcpy(image.bytes + 768, "\7", 1); // head
	struct stall_ring *ring = open_image(&image);
	CHECK_INT(stall_ring_live(ring)->enabled, 1);
	CHECK_INT(stall_ring_live(ring)->state, STALL_RING_LIVE);
	CHECK_INT(stall_ring_live(ring)->head, 7);
	CHECK_INT(stall_ring_kinds(ring), 13);
	for (unsigned i = 0; i < 13; i++)
		CHECK_INT(stall_ring_threshold(ring, i), 1000 + i);
	for (unsigned i = 0; i < 11; i++)
		CHECK_INT(stall_ring_lost(ring, i), 100 + i);
	stall_ring_set_threshold(ring, 12, 5);
	CHECK_INT(stall_ring_threshold(ring, 12), 5);
	CHECK_INT(stall_ring_live(ring)->state, STALL_RING_LIVE);
	stall_ring_close(ring);
	free(image.bytes);
}

// Of a library that knows other kinds of waits than this reader.
static void check_kinds(uint32_t kinds, uint32_t causes)
{
	struct ring_image image = image_create(getpid(), 1);

	image.header->kinds = kinds;
	image.header->causes = causes;
	struct stall_ring *ring = open_image(&image);
	CHECK_INT(stall_ring_kinds(ring), kinds < STALL_WAIT_KINDS ? kinds : STALL_WAIT_KINDS);
	for (uint32_t i = 0; i <= STALL_WAIT_KINDS; i++) {
		stall_ring_set_threshold(ring, i, 3);
		CHECK(stall_ring_threshold(ring, i) == (i < kinds ? 3 : UINT64_MAX));
	}
	CHECK_INT(stall_ring_lost(ring, causes), 0);
	stall_ring_close(ring);
	free(image.bytes);
}

static void test_other_kinds(void)
{
	check_kinds(STALL_WAIT_KINDS - 1, STALL_LOST_CAUSES - 1);
	check_kinds(STALL_WAIT_KINDS, STALL_LOST_CAUSES);
	check_kinds(STALL_WAIT_KINDS + 1,
		    STALL_LOST_CAUSES + 1); // its stats fit: pages are rounded
}

static void test_strings_end(void)
{
	struct ring_image image = image_create(getpid(), 1);

	memset(image.header->exe, 'x', sizeof(image.header->exe));
	memset(image.header->comm, 'y', sizeof(image.header->comm));
	memset(image.header->boot_id, 'z', sizeof(image.header->boot_id));
	memset(image.header->library, 'v', sizeof(image.header->library));
	memset(image_wait(&image, 0, 5, STALL_RING_MUTEX_LOCK, 64, 1)->comm, 'c', STALL_BPF_COMM);
	struct stall_ring *ring = open_image(&image);
	const struct stall_ring_header *header = stall_ring_header(ring);
	struct stall_wait_slot slot;
	CHECK_INT(strlen(header->exe), sizeof(header->exe) - 1);
	CHECK_INT(strlen(header->comm), sizeof(header->comm) - 1);
	CHECK_INT(strlen(header->boot_id), sizeof(header->boot_id) - 1);
	CHECK_INT(strlen(header->library), sizeof(header->library) - 1);
	CHECK(stall_ring_read_slot(ring, 0, &slot));
	CHECK_INT(strlen(slot.comm), STALL_BPF_COMM - 1);
	CHECK(!stall_ring_read_slot(ring, IMAGE_SLOTS, &slot));
	stall_ring_close(ring);
	free(image.bytes);
}

static void test_stacks(void)
{
	struct ring_image image = image_create(getpid(), 1);
	struct stall_ring_stack_copy copy;
	uint8_t bytes[2 * IMAGE_STACK];

	image_wait(&image, 0, 5, STALL_RING_MUTEX_LOCK, 64, 1);
	image_wait_stack(&image, 0, 256, 256, 9);
	image_wait(&image, 1, 6, STALL_RING_MUTEX_LOCK, 64, 1);
	image_wait_stack(&image, 1, UINT32_MAX, UINT64_MAX, 9);
	image_wait(&image, 2, 7, STALL_RING_MUTEX_LOCK, 64, 1);
	image_wait_stack(&image, 2, 256, 256, 9)->seq = 5; // of the wait before
	struct stall_ring *ring = open_image(&image);
	CHECK(stall_ring_read_stack(ring, 0, 7, &copy, bytes, sizeof(bytes)));
	CHECK_INT(copy.size, 256);
	CHECK_INT(bytes[255], 0x5a);
	// As much as there is room for, here and there.
	CHECK(stall_ring_read_stack(ring, 1, 7, &copy, bytes, sizeof(bytes)));
	CHECK_INT(copy.size, IMAGE_STACK);
	CHECK(stall_ring_read_stack(ring, 1, 7, &copy, bytes, 100));
	CHECK_INT(copy.size, 100);
	CHECK(!stall_ring_read_stack(ring, 0, 9, &copy, bytes, sizeof(bytes)));
	CHECK(!stall_ring_read_stack(ring, 2, 7, &copy, bytes, sizeof(bytes)));
	CHECK(!stall_ring_read_stack(ring, IMAGE_SLOTS, 7, &copy, bytes, sizeof(bytes)));
	stall_ring_close(ring);
	free(image.bytes);
}

static size_t read_records(struct stall_ring *ring, uint64_t *cursor, uint64_t *lost,
			   uint64_t *last)
{
	struct stall_ring_record_copy copy;
	uint8_t stack[2 * IMAGE_CELL_STACK];
	size_t count = 0;

	while (stall_ring_next_record(ring, cursor, lost, &copy, stack, sizeof(stack))) {
		*last = copy.record.now_ns;
		CHECK(copy.record.stack_size <= IMAGE_CELL_STACK);
		count++;
	}
	return count;
}

static void test_records(void)
{
	struct ring_image image = image_create(getpid(), 1);
	uint64_t cursor = 0, lost = 0, last = 0;

	for (uint64_t i = 0; i < 3; i++)
		image_record(&image, i, STALL_RECORD_WAKER, 5, 64, 100 + i);
	image_cell(&image, 1)->record.stack_size = UINT32_MAX;
	image_cell(&image, 2)->record.magic = 0;
	struct stall_ring *ring = open_image(&image);
	struct stall_ring_header *live = (struct stall_ring_header *)stall_ring_live(ring);
	CHECK_INT(read_records(ring, &cursor, &lost, &last), 2);
	CHECK_INT(last, 101);
	CHECK_INT(lost, 1); // the one that is no record
	CHECK_INT(cursor, 3);
	// Ahead by more than the ring holds: what was overwritten is lost.
	live->head = 3 + 3 * IMAGE_CELLS;
	lost = 0;
	CHECK_INT(read_records(ring, &cursor, &lost, &last), 0);
	CHECK_INT(lost, 2 * IMAGE_CELLS);
	CHECK_INT(cursor, 3 + 2 * IMAGE_CELLS); // the next one is being written
	// Neither the largest number there is nor one that goes back makes it read forever.
	live->head = UINT64_MAX;
	read_records(ring, &cursor, &lost, &last);
	live->head = 0;
	CHECK_INT(read_records(ring, &cursor, &lost, &last), 0);
	stall_ring_close(ring);
	free(image.bytes);
}

static void test_releases(void)
{
	struct ring_image image = image_create(getpid(), 1);
	struct stall_ring_releases releases;

	// The second cell's writer died.
	for (uint64_t i = 0; i < 5; i++)
		image_record(&image, i, i == 3 ? STALL_RECORD_END : STALL_RECORD_WAKER, 5,
			     i == 4 ? 128 : 64, 100 + i);
	image_cell(&image, 1)->ticket = 2 * 1 + 1;
	struct stall_ring *ring = open_image(&image);
	CHECK_OK(stall_ring_releases_init(&releases, ring, &arena, 4096));
	CHECK_INT(releases.count, 3);
	CHECK_INT(releases.newest_ns, 104);
	CHECK_INT(releases.releases[0].record.record.now_ns, 104);
	CHECK_INT(releases.releases[1].record.record.now_ns, 102);
	CHECK_INT(releases.releases[1].stack[63], 2);
	CHECK_INT(releases.releases[2].record.record.now_ns, 100);
	CHECK_INT(stall_ring_released_ns(&releases, 64), 102);
	CHECK_INT(stall_ring_released_ns(&releases, 4711), 0);
	stall_ring_releases_deinit(&releases);
	stall_ring_close(ring);
	free(image.bytes);
}

// Words of a mutex and of rwlocks, by two waiters that read them at different times.
static void test_threads(void)
{
	struct ring_image image = image_create(getpid(), 1);
	struct stall_ring_threads threads;
	struct stall_ring_releases releases = {};
	struct stall_snapshot snapshot = {};

	image_wait(&image, 0, 30, STALL_RING_MUTEX_LOCK, 0x1000, 50);
	image_set_word(image_wait_stack(&image, 0, 64, 64, 90)->words, 8, 4711);
	image_wait(&image, 1, 20, STALL_RING_MUTEX_LOCK, 0x1000, 40);
	image_set_word(image_wait_stack(&image, 1, 64, 128, 95)->words, 8, 4712);
	image_wait(&image, 2, 20, STALL_RING_MUTEX_LOCK, 0x2000, 30); // its slot was left behind
	image_wait(&image, 3, -1, STALL_RING_MUTEX_LOCK, 0x2000, 30);
	image_wait(&image, 4, 40, STALL_RING_COND_WAIT, 0x3000, 30)->seq = 8; // in no wait
	struct stall_ring *ring = open_image(&image);
	CHECK_OK(stall_ring_threads_init(&threads, ring, &arena, 4096));
	CHECK_INT(threads.count, 3);
	CHECK_INT(threads.newest_ns, 95);
	const struct stall_ring_thread *found = stall_ring_threads_find(&threads, 20);
	CHECK(found && found->slot.key.id == 0x1000);
	CHECK(!stall_ring_threads_find(&threads, 21));
	struct stall_thread thread = {.label = STALL_RACED};
	stall_ring_thread_fill(found, 100, &thread);
	CHECK_INT(thread.label, STALL_TRUNCATED);
	CHECK_INT(thread.waited_ns, 60);
	CHECK_INT(thread.object_kind, STALL_OBJECT_MUTEX);
	CHECK_INT(thread.regs.value[STALL_REG_PC], 0x400123);
	stall_ring_thread_fill(stall_ring_threads_find(&threads, 30), 100, &thread);
	CHECK_INT(thread.label, STALL_VERIFIED);
	thread = (struct stall_thread){.label = STALL_RACED};
	stall_ring_thread_fill(stall_ring_threads_find(&threads, 40), 100, &thread);
	CHECK(!thread.in_syscall && !thread.stack && thread.label == STALL_RACED);
	CHECK_OK(stall_ring_words_add(&snapshot, 0, &threads, &releases));
	CHECK_INT(snapshot.futex_count, 1);
	CHECK(!snapshot.futexes[0].stable);
	uint32_t owner;
	memcpy(&owner, snapshot.futexes[0].first + STALL_FUTEX_BEFORE + 8, sizeof(owner));
	CHECK_INT(owner, 4712); // the later one
	free(snapshot.futexes);
	stall_ring_threads_deinit(&threads);
	stall_ring_close(ring);
	free(image.bytes);
}

static void add_waiter(struct ring_image *image, size_t slot, pid_t tid, uint64_t object,
		       uint64_t start_ns, pid_t owner, uint64_t words_ns)
{
	image_wait(image, slot, tid, STALL_RING_MUTEX_LOCK, object, start_ns);
	if (words_ns)
		image_set_word(image_wait_stack(image, slot, 64, 64, words_ns)->words, 8, owner);
}

// An owner that waits itself: whether that can be a ring.
static void test_owners_that_wait(void)
{
	struct ring_image image = image_create(getpid(), 1);
	struct stall_ring_threads threads;
	struct stall_ring_releases releases = {};
	struct stall_snapshot snapshot = {};

	add_waiter(&image, 0, 30, 0x1000, 50, 20, 90);
	add_waiter(&image, 1, 20, 0x1000, 50, 0, 0);   // has just got it
	add_waiter(&image, 2, 40, 0x2000, 50, 40, 90); // has had it before
	add_waiter(&image, 3, 50, 0x3000, 50, 60, 90);
	add_waiter(&image, 4, 60, 0x4000, 95, 0, 0); // may have let 0x3000 go at 92
	add_waiter(&image, 5, 70, 0x5000, 50, 80, 90);
	add_waiter(&image, 6, 80, 0x6000, 50, 0, 0); // had 0x5000 while it waited
	struct stall_ring *ring = open_image(&image);
	CHECK_OK(stall_ring_threads_init(&threads, ring, &arena, 4096));
	CHECK_OK(stall_ring_words_add(&snapshot, 0, &threads, &releases));
	CHECK_INT(snapshot.futex_count, 4);
	for (size_t i = 0; i < snapshot.futex_count; i++) {
		uint64_t address = snapshot.futexes[i].address;
		bool is_sure = address == 0x2000 || address == 0x5000;
		CHECK_INT(snapshot.futexes[i].stable, is_sure);
		CHECK_INT(snapshot.futexes[i].read_twice, is_sure);
	}
	free(snapshot.futexes);
	stall_ring_threads_deinit(&threads);
	stall_ring_close(ring);
	free(image.bytes);
}

static void test_maps(void)
{
	struct ring_image image = image_create(getpid(), 1);
	char *text = NULL;
	uint64_t read_ns = 0;
	bool truncated = true;

	image_set_maps(&image, "00400000-00401000 r-xp 00000000 08:01 42 /usr/sbin/imagined\n");
	struct stall_ring *ring = open_image(&image);
	CHECK_OK(stall_ring_read_maps(ring, &text, &read_ns, &truncated));
	CHECK(text && strstr(text, "/usr/sbin/imagined\n"));
	CHECK_INT(read_ns, 2000);
	CHECK(!truncated);
	free(text);
	struct stall_ring_maps *maps =
		(void *)((uint8_t *)stall_ring_live(ring) + image.header->maps_offset);
	maps->size = UINT32_MAX;
	maps->truncated = 1;
	stall_ring_live(ring)->maps = 0xfffffffe;
	CHECK_OK(stall_ring_read_maps(ring, &text, &read_ns, &truncated));
	CHECK(truncated);
	free(text);
	stall_ring_close(ring);
	free(image.bytes);
}

// What the file does not have any more reads as zeros, and does not end the reader.
static void test_cut(void)
{
	struct ring_image image = image_create(getpid(), 1);
	struct stall_ring_releases releases;
	struct stall_ring_threads threads;
	char *text = NULL;
	uint64_t read_ns;
	bool truncated;
	size_t count;

	image_wait(&image, 0, 30, STALL_RING_MUTEX_LOCK, 0x1000, 50);
	image_wait_stack(&image, 0, 64, 64, 90);
	image_record(&image, 0, STALL_RECORD_WAKER, 5, 64, 100);
	struct stall_ring *ring = open_image(&image);
	CHECK(!stall_ring_was_cut(ring));
	CHECK(truncate(path, STALL_RING_PAGE + 100) == 0);
	CHECK(stall_ring_was_cut(ring));
	CHECK_OK(stall_ring_threads_init(&threads, ring, &arena, 4096));
	CHECK_OK(stall_ring_releases_init(&releases, ring, &arena, 4096));
	CHECK_INT(releases.count, 0);
	CHECK_OK(stall_ring_read_maps(ring, &text, &read_ns, &truncated));
	CHECK_STRING(text, "");
	free(text);
	volatile struct stall_wait_stat *stats = stall_ring_stats(ring, &count);
	stats[count - 1].role = 3; // writing goes nowhere, but goes
	CHECK_INT(stats[count - 1].role, 3);
	// All of it, the header with it.
	CHECK(truncate(path, 0) == 0);
	stall_ring_threads_deinit(&threads);
	CHECK_OK(stall_ring_threads_init(&threads, ring, &arena, 4096));
	CHECK_INT(threads.count, 0);
	CHECK_INT(stall_ring_live(ring)->enabled, 0);
	stall_ring_threads_deinit(&threads);
	stall_ring_releases_deinit(&releases);
	stall_ring_close(ring);
	free(image.bytes);
}

int main(void)
{
	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof(path), "%s/1-1.ring", folder);
	CHECK_OK(stall_arena_init(&arena, 1 << 20));
	test_headers();
	test_version_1();
	test_other_kinds();
	test_strings_end();
	test_stacks();
	test_records();
	test_releases();
	test_threads();
	test_owners_that_wait();
	test_maps();
	test_cut();
	stall_arena_deinit(&arena);
	unlink(path);
	rmdir(folder);
	return check_done();
}

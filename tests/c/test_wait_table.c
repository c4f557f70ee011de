// SPDX-License-Identifier: Apache-2.0
// Counts of locks and files, fed by stats as the kernel's side keeps them.
#include <stdlib.h>

#include "check.h"
#include "waits/wait_table.h"
#include "watch/watch_state.h"

#define PID 4711
#define SECOND UINT64_C(1000000000)

static struct stall_wait_table *table;

static struct stall_wait_key futex(uint64_t address)
{
	return (struct stall_wait_key){.tgid = PID, .kind = STALL_WAIT_FUTEX, .id = address};
}

static struct stall_wait_key file(enum stall_wait_kind kind, uint64_t inode)
{
	return (struct stall_wait_key){.tgid = PID, .kind = kind, .id = inode, .id2 = 8 << 20};
}

// `count` waits of 2^bucket ns.
static struct stall_wait_stat stat_of(struct stall_wait_key key, uint64_t count, int bucket)
{
	struct stall_wait_stat stat = {.key = key, .used = 1};

	stat.bucket[bucket] = count;
	stat.total_ns = count << bucket;
	stat.over = count / 2;
	stat.bytes = count * 4096;
	return stat;
}

static void collect(const struct stall_wait_stat *stats, size_t count, uint64_t max_ns,
		    uint64_t now_ns)
{
	stall_wait_table_begin(table);
	for (size_t i = 0; i < count; i++)
		CHECK_OK(stall_wait_table_add(table, &stats[i], max_ns));
	stall_wait_table_finish(table, now_ns);
}

static void create(void)
{
	stall_wait_table_destroy(table);
	table = NULL;
	CHECK_OK(stall_wait_table_create(&table));
}

static uint64_t sum_of(enum stall_watch_kind kind, bool final)
{
	static struct stall_wait_counts sums[STALL_WATCH_KINDS][STALL_FILE_CLASSES];
	uint64_t count = 0;

	stall_wait_table_sum(table, final, sums);
	for (int class = 0; class < STALL_FILE_CLASSES; class ++)
		count += sums[kind][class].count;
	return count;
}

static void test_interval_and_total(void)
{
	const struct stall_wait_key key = file(STALL_WAIT_FSYNC, 12);
	struct stall_wait_stat stat = stat_of(key, 10, 20);

	create();
	collect(&stat, 1, 2000000, SECOND);
	struct stall_wait_entry *entry = stall_wait_table_find(table, &key);
	CHECK(entry != NULL);
	CHECK_INT(entry->kind, STALL_WATCH_FSYNC);
	CHECK_INT(stall_wait_entry_counts(entry, false).count, 10);
	stall_wait_table_next(table);
	CHECK_INT(stall_wait_entry_counts(entry, false).count, 0);
	CHECK_INT(stall_wait_entry_counts(entry, false).max_ns, 0);
	CHECK_INT(sum_of(STALL_WATCH_FSYNC, false), 0);

	stat = stat_of(key, 13, 20);
	collect(&stat, 1, 1500000, 2 * SECOND);
	const struct stall_wait_counts interval = stall_wait_entry_counts(entry, false);
	CHECK_INT(interval.count, 3);
	CHECK_INT(interval.bucket[20], 3);
	CHECK_INT(interval.total_ns, 3 << 20);
	CHECK_INT(interval.max_ns, 1500000);
	CHECK_INT(interval.bytes, 3 * 4096);
	const struct stall_wait_counts total = stall_wait_entry_counts(entry, true);
	CHECK_INT(total.count, 13);
	CHECK_INT(total.max_ns, 2000000);
	CHECK_INT(sum_of(STALL_WATCH_FSYNC, false), 3);
	CHECK_INT(sum_of(STALL_WATCH_FSYNC, true), 13);
}

// What was read of a stat while the kernel's side wrote to it never makes an interval negative.
static void test_torn_read(void)
{
	const struct stall_wait_key key = futex(0x1000);
	struct stall_wait_stat stat = stat_of(key, 10, 20);

	create();
	collect(&stat, 1, 0, SECOND);
	stall_wait_table_next(table);
	stat.total_ns -= 5;
	stat.bucket[20]--;
	collect(&stat, 1, 0, 2 * SECOND);
	const struct stall_wait_counts counts =
		stall_wait_entry_counts(stall_wait_table_find(table, &key), false);
	CHECK_INT(counts.count, 0);
	CHECK_INT(counts.total_ns, 0);
}

// While a stat is given back its key can have a second one.
static void test_retired(void)
{
	const struct stall_wait_key key = futex(0x1000);
	struct stall_wait_stat stats[2] = {stat_of(key, 10, 20), stat_of(key, 4, 10)};

	create();
	collect(stats, 1, 0, SECOND);
	stall_wait_table_next(table);
	collect(stats, 2, 0, 2 * SECOND);
	struct stall_wait_entry *entry = stall_wait_table_find(table, &key);
	CHECK_INT(stall_wait_entry_counts(entry, false).count, 4);
	// The first gets one more wait before it is free.
	stats[0] = stat_of(key, 11, 20);
	CHECK_OK(stall_wait_table_retire(table, &stats[0]));
	stall_wait_table_next(table);
	collect(stats + 1, 1, 0, 3 * SECOND);
	CHECK_INT(stall_wait_entry_counts(entry, false).count, 1);
	CHECK_INT(stall_wait_entry_counts(entry, true).count, 15);
	// And the other is given back too.
	CHECK_OK(stall_wait_table_retire(table, &stats[1]));
	stall_wait_table_next(table);
	collect(NULL, 0, 0, 4 * SECOND);
	CHECK_INT(stall_wait_entry_counts(entry, false).count, 0);
	CHECK_INT(stall_wait_entry_counts(entry, true).count, 15);
	CHECK(!entry->has_stat);
}

static void test_quiet(void)
{
	const struct stall_wait_key key = futex(0x1000);
	struct stall_wait_stat stat = stat_of(key, 1, 20);

	create();
	collect(&stat, 1, 0, 5 * SECOND);
	collect(&stat, 1, 0, 6 * SECOND);
	struct stall_wait_entry *entry = stall_wait_table_find(table, &key);
	CHECK_INT(entry->quiet_since_ns, 5 * SECOND);
	stat = stat_of(key, 2, 20);
	collect(&stat, 1, 0, 7 * SECOND);
	CHECK_INT(entry->quiet_since_ns, 7 * SECOND);
}

// A server that makes and frees locks without end: the table stays as large as it may be, and no
// wait is missing in the sums.
static void test_many_keys(void)
{
	struct stall_wait_entry *entry;
	const size_t lives = 3 * STALL_MAX_ENTRIES;
	size_t count = 0;

	create();
	for (size_t i = 0; i < lives; i++) {
		const struct stall_wait_stat stat = stat_of(futex(0x10000 + i * 64), 2, 10);
		struct stall_error *err = stall_wait_table_retire(table, &stat);
		if (err) {
			CHECK_OK(err);
			break;
		}
	}
	collect(NULL, 0, 0, SECOND);
	for (size_t i = 0; (entry = stall_wait_table_at(table, i)); i++)
		count++;
	CHECK(count <= STALL_MAX_ENTRIES);
	CHECK(count > STALL_MAX_ENTRIES / 2);
	CHECK_INT(sum_of(STALL_WATCH_FUTEX, true), 2 * lives);
	CHECK_INT(sum_of(STALL_WATCH_FUTEX, false), 2 * lives);
	stall_wait_table_next(table);
	collect(NULL, 0, 0, 2 * SECOND);
	CHECK_INT(sum_of(STALL_WATCH_FUTEX, false), 0);
}

static size_t sorts;

static int compare_by(const void *a, const void *b, void *arg)
{
	int (**compare)(const void *, const void *) = arg;

	return (*compare)(a, b);
}

// In place of the C library's.
void qsort(void *base, size_t count, size_t size, int (*compare)(const void *, const void *))
{
	sorts++;
	qsort_r(base, count, size, compare_by, &compare);
}

static void test_full_of_stats(void)
{
	struct stall_error *err = NULL;
	size_t i = 0;

	create();
	sorts = 0;
	stall_wait_table_begin(table);
	for (; i < STALL_MAX_ENTRIES && !err; i++) {
		const struct stall_wait_stat stat = stat_of(futex(0x10000 + i * 64), 1, 10);
		err = stall_wait_table_add(table, &stat, 0);
	}
	CHECK(!err);
	const struct stall_wait_stat one_more = stat_of(futex(0x10), 1, 10);
	err = stall_wait_table_add(table, &one_more, 0);
	CHECK(err && err->code == STALL_ERROR_LIMIT);
	stall_error_destroy(err);
	// What is of no use is not tried for each of a million of them.
	CHECK_INT(sorts, 1);
	for (i = 0; i < 100; i++)
		stall_error_destroy(stall_wait_table_add(table, &one_more, 0));
	CHECK_INT(sorts, 1);
	stall_wait_table_finish(table, SECOND);
	CHECK_INT(sum_of(STALL_WATCH_FUTEX, true), STALL_MAX_ENTRIES);
}

static void test_uses(void)
{
	struct stall_wait_uses uses = {};
	struct stall_wait_use use = {.stack = 1, .count = 1, .total_ns = 5, .tid = 7};

	CHECK(stall_wait_uses_add(&uses, &use));
	use.tid = 8;
	CHECK(stall_wait_uses_add(&uses, &use));
	CHECK_INT(uses.count, 1);
	CHECK_INT(uses.uses[0].count, 2);
	CHECK_INT(uses.uses[0].all_total_ns, 10);
	CHECK_INT(uses.uses[0].tid, 8);
	use.label = STALL_RACED; // the same frames, trusted less
	CHECK(stall_wait_uses_add(&uses, &use));
	CHECK_INT(uses.count, 2);
	for (uint32_t i = 2; i < STALL_MAX_USES; i++) {
		use.stack = i;
		CHECK(stall_wait_uses_add(&uses, &use));
	}
	use.stack = 1000;
	CHECK(!stall_wait_uses_add(&uses, &use));
	CHECK_INT(uses.count, STALL_MAX_USES);
	free(uses.uses);
}

static void make_rwlock(uint64_t lock)
{
	const struct stall_wait_stat stats[2] = {stat_of(futex(lock + 8), 3, 20),
						 stat_of(futex(lock + 12), 4, 20)};

	collect(stats, 2, 0, SECOND);
	for (int i = 0; i < 2; i++) {
		struct stall_wait_entry *entry = stall_wait_table_find(table, &stats[i].key);
		entry->kind = STALL_WATCH_RWLOCK;
		entry->object = lock;
	}
}

// The words of one lock stand together; the longest total comes first.
static void test_top(void)
{
	struct stall_wait_top top;
	struct stall_wait_stat stats[3] = {
		stat_of(futex(0x9000), 1, 30),
		stat_of(file(STALL_WAIT_FSYNC, 3), 1, 25),
		stat_of((struct stall_wait_key){.kind = STALL_WAIT_FSYNC}, 100, 30),
	};

	create();
	make_rwlock(0x1000);
	stall_wait_table_next(table);
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, true, 10));
	CHECK_INT(top.count, 1);
	CHECK_INT(top.groups[0].count, 2);
	CHECK_INT(top.groups[0].counts.count, 7);
	stall_wait_top_deinit(&top);

	create();
	collect(stats, 3, 0, SECOND);
	// What stands for all keys that found no room is in the sums alone.
	CHECK_INT(sum_of(STALL_WATCH_FSYNC, true), 101);
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, true, 10));
	CHECK_INT(top.count, 2);
	CHECK_INT(top.groups[0].entries[0]->key.id, 0x9000);
	stall_wait_top_deinit(&top);
	CHECK_OK(stall_wait_top_init(&top, table, 1u << STALL_WATCH_FSYNC, true, 10));
	CHECK_INT(top.count, 1);
	stall_wait_top_deinit(&top);
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, true, 1));
	CHECK_INT(top.count, 1);
	stall_wait_top_deinit(&top);
}

// Waits in flight are shown, too.
static void test_top_in_flight(void)
{
	const struct stall_wait_stat stat = stat_of(futex(0x1000), 0, 0);
	struct stall_wait_top top;

	create();
	collect(&stat, 1, 0, SECOND);
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, false, 10));
	CHECK_INT(top.count, 0);
	stall_wait_top_deinit(&top);
	struct stall_wait_entry *entry = stall_wait_table_find(table, &stat.key);
	entry->in_flight = 3;
	entry->longest_ns = 77;
	// It has no role yet: they may be waiting for work.
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, false, 10));
	CHECK_INT(top.count, 0);
	stall_wait_top_deinit(&top);
	entry->examined = true;
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, false, 10));
	CHECK_INT(top.count, 1);
	CHECK_INT(top.groups[0].in_flight, 3);
	CHECK_INT(top.groups[0].longest_ns, 77);
	stall_wait_top_deinit(&top);
}

// A row has an entry by its name; the words that threads wait for it on are in the sums.
static void test_by_name(void)
{
	const struct stall_wait_stat stats[2] = {stat_of(futex(0x1000), 5, 20),
						 stat_of(futex(0x2000), 6, 20)};
	const struct stall_wait_key key =
		stall_wait_key_by_name(PID, STALL_WATCH_ROW_LOCK, "row 1 of t");
	const struct stall_wait_key other =
		stall_wait_key_by_name(PID, STALL_WATCH_ROW_LOCK, "row 2 of t");
	struct stall_wait_entry *row;
	struct stall_wait_top top;

	CHECK(memcmp(&key, &other, sizeof(key)) != 0);
	create();
	collect(stats, 2, 0, SECOND);
	for (int i = 0; i < 2; i++)
		stall_wait_table_find(table, &stats[i].key)->kind = STALL_WATCH_ROW_LOCK;
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, true, 10));
	CHECK_INT(top.count, 1); // nothing is known but that these are row locks
	CHECK_INT(top.groups[0].counts.count, 11);
	stall_wait_top_deinit(&top);

	CHECK_OK(stall_wait_table_get(table, &key, &row));
	row->by_name = true;
	row->kind = STALL_WATCH_ROW_LOCK;
	stall_wait_entry_count(row, 3000);
	stall_wait_entry_count(row, 5000);
	collect(stats, 2, 0, 2 * SECOND);
	CHECK_OK(stall_wait_top_init(&top, table, ~0u, true, 10));
	CHECK_INT(top.count, 1);
	CHECK_INT(top.groups[0].counts.count, 2);
	CHECK_INT(top.groups[0].counts.total_ns, 8000);
	CHECK_INT(top.groups[0].counts.max_ns, 5000);
	CHECK_INT(top.groups[0].counts.bucket[11], 1);
	CHECK_INT(top.groups[0].counts.bucket[12], 1);
	stall_wait_top_deinit(&top);
	CHECK_INT(sum_of(STALL_WATCH_ROW_LOCK, true), 11);
	stall_wait_table_next(table);
	CHECK_INT(stall_wait_entry_counts(row, false).count, 0);
}

static struct stall_wait_record wake(uint64_t address, uint64_t when_ns, pid_t tid)
{
	return (struct stall_wait_record){
		.type = STALL_RECORD_WAKER,
		.tid = tid,
		.key = futex(address),
		.start_ns = when_ns,
		.now_ns = when_ns,
	};
}

// The last waker of the same word during the wait.
static void test_wakers(void)
{
	static struct stall_wakers wakers;
	const struct stall_wait_record wakes[] = {
		wake(0x1000, 50, 1),  wake(0x1000, 150, 2), wake(0x2000, 180, 3),
		wake(0x1000, 190, 4), wake(0x1000, 170, 5), wake(0x1000, 250, 6),
	};
	struct stall_wait_record end = {
		.type = STALL_RECORD_END,
		.key = futex(0x1000),
		.start_ns = 100,
		.now_ns = 200,
	};

	CHECK(!stall_wakers_find(&wakers, &end));
	for (size_t i = 0; i < sizeof(wakes) / sizeof(wakes[0]); i++)
		stall_wakers_add(&wakers, &wakes[i], 10 + i, STALL_VERIFIED);
	const struct stall_waker *found = stall_wakers_find(&wakers, &end);
	CHECK(found && found->tid == 4);
	end.key = futex(0x3000);
	CHECK(!stall_wakers_find(&wakers, &end));
	end.key = futex(0x1000);
	end.start_ns = 195;
	CHECK(!stall_wakers_find(&wakers, &end)); // it was over, or ended by itself
	for (size_t i = 0; i < STALL_WAKERS; i++) {
		const struct stall_wait_record other = wake(0x4000, 300 + i, 9);
		stall_wakers_add(&wakers, &other, 1, STALL_VERIFIED);
	}
	end.start_ns = 100;
	CHECK(!stall_wakers_find(&wakers, &end)); // forgotten
}

// The reader was late: the wait after the next is counted before the end of this one is met.
static void test_counted_before_the_end_of_an_earlier_one(void)
{
	struct stall_watch_counted counted[4] = {};
	struct stall_watch watch = {.counted = counted, .slot_count = 2};
	const uint32_t seqs[] = {11, 13, 17, 23};

	for (size_t i = 0; i < sizeof(seqs) / sizeof(seqs[0]); i++) {
		struct stall_watch_counted *at = stall_watch_counted_at(&watch, 1, seqs[i]);
		CHECK(at && at->seq != seqs[i]);
		*at = (struct stall_watch_counted){.seq = seqs[i], .start_ns = 100 * (i + 1)};
		CHECK(stall_watch_counted_at(&watch, 1, seqs[i]) == at);
		if (i)
			CHECK(stall_watch_counted_at(&watch, 1, seqs[i - 1])->seq == seqs[i - 1]);
	}
	CHECK(!counted[0].seq && !counted[1].seq); // another thread's
	CHECK(!stall_watch_counted_at(&watch, 2, 11));
}

int main(void)
{
	test_interval_and_total();
	test_torn_read();
	test_retired();
	test_quiet();
	test_many_keys();
	test_full_of_stats();
	test_uses();
	test_top();
	test_top_in_flight();
	test_by_name();
	test_wakers();
	test_counted_before_the_end_of_an_earlier_one();
	stall_wait_table_destroy(table);
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// Asynchronous I/O of a target that does exactly as much as it is asked for: tests/targets/async.c.
#include <stdlib.h>

#include "check.h"
#include "ebpf/waits_loader.h"
#include "ebpf/waits_read.h"
#include "target_process.h"

static struct stall_bpf_waits *waits;
static struct target_process target;

struct totals {
	uint64_t count, bytes, over, max_ns;
};

// Of all keys of a kind; with an inode, of that file alone.
static struct totals totals_of(enum stall_wait_kind kind, uint64_t inode)
{
	struct totals totals = {};
	size_t count;
	const volatile struct stall_wait_stat *stats = stall_bpf_waits_stats(waits, &count);

	for (size_t i = 0; i < count; i++) {
		if (!stats[i].used || stats[i].key.kind != kind ||
		    (inode && stats[i].key.id != inode))
			continue;
		for (size_t n = 0; n < STALL_WAIT_BUCKETS; n++)
			totals.count += stats[i].bucket[n];
		totals.bytes += stats[i].bytes;
		totals.over += stats[i].over;
		if (totals.max_ns < stats[i].max_ns)
			totals.max_ns = stats[i].max_ns;
	}
	return totals;
}

static unsigned long ask(const char *command)
{
	char answer[256];

	CHECK(target_ask(&target, command, answer, sizeof(answer)));
	return target_number(answer, "longest");
}

static void check_calls(const char *command, enum stall_wait_kind kind, uint64_t count,
			uint64_t bytes, bool by_file)
{
	uint64_t inode = by_file ? target_number(target.facts, "inode") : 0;
	struct totals before = totals_of(kind, inode);
	unsigned long longest = ask(command);
	struct totals after = totals_of(kind, inode);

	CHECK(longest > 0);
	if (after.count - before.count != count || after.bytes - before.bytes != bytes)
		fprintf(stderr, "%s:\n", command);
	CHECK_INT(after.count - before.count, count);
	CHECK_INT(after.bytes - before.bytes, bytes);
	CHECK(after.max_ns > 0);
}

static void test_aio(void)
{
	check_calls("aio read 23", STALL_WAIT_READ, 23, 23 * 4096, true);
	check_calls("aio readv 7", STALL_WAIT_READ, 7, 7 * 4096, true);
	check_calls("aio write 100", STALL_WAIT_WRITE, 100, 100 * 4096, true);
	check_calls("aio writev 3", STALL_WAIT_WRITE, 3, 3 * 4096, true);
	check_calls("aio extend 5", STALL_WAIT_EXTEND, 5, 5 * 4096, true);
	check_calls("aio fsync 11", STALL_WAIT_FSYNC, 11, 0, true);
	check_calls("aio fdatasync 13", STALL_WAIT_FDATASYNC, 13, 0, true);
	// What the kernel did not take has no end.
	check_calls("refused", STALL_WAIT_READ, 2, 2 * 4096, true);
	// Nothing has ended for the program before it fetches it.
	check_calls("left 17", STALL_WAIT_READ, 0, 0, true);
	check_calls("fetch 17", STALL_WAIT_READ, 17, 17 * 4096, true);
}

static void test_uring(void)
{
	check_calls("uring read 23", STALL_WAIT_READ, 23, 23 * 4096, true);
	check_calls("uring fixed 19", STALL_WAIT_READ, 19, 19 * 4096, true);
	check_calls("uring readv 7", STALL_WAIT_READ, 7, 7 * 4096, true);
	check_calls("uring write 29", STALL_WAIT_WRITE, 29, 29 * 4096, true);
	check_calls("uring writev 3", STALL_WAIT_WRITE, 3, 3 * 4096, true);
	check_calls("uring extend 5", STALL_WAIT_EXTEND, 5, 5 * 4096, true);
	check_calls("uring fsync 11", STALL_WAIT_FSYNC, 11, 0, true);
	check_calls("uring fdatasync 13", STALL_WAIT_FDATASYNC, 13, 0, true);
	check_calls("uring fallocate 31", STALL_WAIT_FALLOCATE, 31, 0, true);
	check_calls("uring sync_file_range 2", STALL_WAIT_SYNC_FILE_RANGE, 2, 0, true);
	check_calls("uring unlink 3", STALL_WAIT_UNLINK, 3, 0, false);
	check_calls("uring rename 2", STALL_WAIT_RENAME, 2, 0, false);
}

struct seen {
	size_t ends, files, paths;
	struct stall_wait_record last;
};

static void take_wait(void *arg, const struct stall_wait_record *record, const uint8_t *stack)
{
	struct seen *seen = arg;

	if (record->type != STALL_RECORD_END || !(record->flags & STALL_SLOT_ASYNC))
		return;
	seen->ends++;
	seen->last = *record;
}

static void take_file(void *arg, const struct stall_wait_file *file)
{
	struct seen *seen = arg;

	seen->paths += strstr(file->path, "/async-") != NULL;
	seen->files += file->key.id == target_number(target.facts, "inode");
}

static struct seen consume(void)
{
	struct seen seen = {};
	struct stall_wait_handler handler = {.arg = &seen, .wait = take_wait, .file = take_file};
	size_t count;

	CHECK_OK(stall_bpf_waits_consume(waits, &handler, 0, &count));
	return seen;
}

// Above its threshold each has a record, with the thread that submitted it and without a stack.
static void test_records(const char *command, size_t count, enum stall_wait_kind kind)
{
	stall_bpf_waits_set_threshold(waits, kind, 1);
	ask(command);
	struct seen seen = consume();
	stall_bpf_waits_set_threshold(waits, kind, UINT64_C(3600000000000));
	CHECK_INT(seen.ends, count);
	CHECK_INT(seen.last.tid, target.pid);
	CHECK_INT(seen.last.tgid, target.pid);
	CHECK_INT(seen.last.key.kind, kind);
	CHECK_INT(seen.last.key.id, target_number(target.facts, "inode"));
	CHECK_INT(seen.last.stack_size, 0);
	CHECK(seen.last.now_ns > seen.last.start_ns);
	CHECK_STRING(seen.last.comm, "target-async");
	CHECK(totals_of(kind, 0).over >= count);
}

// Neither kept in the kernel forever nor lost without being counted.
static void check_lost(void)
{
	uint64_t lost[STALL_LOST_CAUSES];

	stall_bpf_waits_lost(waits, lost);
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		CHECK_INT(lost[i], 0);
}

static const char *why_no_uring(void)
{
	size_t count;
	const struct stall_wait_program *programs = stall_bpf_waits_programs(waits, &count);

	for (size_t i = 0; i < count; i++) {
		if (strcmp(programs[i].name, "io_uring") == 0)
			return programs[i].why_not;
	}
	CHECK(!"a probe named io_uring");
	return "?";
}

int main(void)
{
	struct stall_bpf_waits_options options;
	char folder[] = "/var/tmp/async.XXXXXX";
	const char *argv[] = {"async", mkdtemp(folder), NULL};

	stall_bpf_waits_options_init(&options);
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		options.threshold_ns[i] = UINT64_C(3600000000000);
	struct stall_error *err = stall_bpf_waits_create(&options, &waits);
	if (err)
		return check_missing("waits", err->message);
	CHECK(target_start(&target, argv));
	CHECK_OK(stall_bpf_waits_add(waits, target.pid));
	test_aio();
	struct seen seen = consume();
	CHECK_INT(seen.ends, 0);
	CHECK(seen.files >= 5);
	test_records("aio read 9", 9, STALL_WAIT_READ);
	if (why_no_uring() || !target_number(target.facts, "uring")) {
		printf("io_uring: %s\n", why_no_uring() ? why_no_uring() : "not allowed here");
	} else {
		test_uring();
		CHECK_INT(consume().paths, 3 + 2);
		test_records("uring fsync 4", 4, STALL_WAIT_FSYNC);
	}
	check_lost();
	stall_bpf_waits_destroy(waits);
	target_stop(&target);
	char command[64];
	snprintf(command, sizeof(command), "rm -r %s", folder);
	CHECK_INT(system(command), 0);
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// What the wait programs count and report of a process whose waits are known. Lengths, stacks and
// names: tests/root/test_waits.py.
#include "ebpf/waits_read.h"
#include "waits_watcher.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

static const struct stall_wait_file *find_file(const struct watcher *watcher,
					       enum stall_wait_kind kind, const char *name)
{
	for (size_t i = 0; i < watcher->file_count; i++) {
		const struct stall_wait_file *file = &watcher->files[i];
		const char *slash = strrchr(file->path, '/');

		if (file->key.kind == kind &&
		    (!strcmp(file->names[0], name) || (slash && !strcmp(slash + 1, name))))
			return file;
	}
	return NULL;
}

// What the kernel says of the file is what stat(2) says of it.
static void check_file(const struct stall_wait_file *file, const struct actor *actor,
		       const char *name)
{
	char path[256];
	struct stat expected;

	snprintf(path, sizeof(path), "%s/%s", actor->folder, name);
	if (file->fd < 0) {
		CHECK_STRING(file->path, path);
		CHECK_INT(file->name_count, 0);
		return;
	}
	CHECK_STRING(file->names[1], strrchr(actor->folder, '/') + 1);
	CHECK(file->name_count >= 2);
	if (stat(path, &expected) < 0)
		return;
	CHECK_INT(file->mode, expected.st_mode);
	CHECK_INT(file->key.id, expected.st_ino);
	CHECK_INT(file->key.id2 >> 32, major(expected.st_dev) << 20 | minor(expected.st_dev));
}

static void test_operations(struct watcher *watcher, struct actor *actor)
{
	static const struct {
		const char *command, *name; // NULL: not known by a file
		enum stall_wait_kind kind;
		int count;
		uint64_t bytes;
	} known[] = {
		{"fsync 23", "known-fsync", STALL_WAIT_FSYNC, 23, 0},
		{"fdatasync 5", "known-fdatasync", STALL_WAIT_FDATASYNC, 5, 0},
		{"sync_file_range 3", "known-sync_file_range", STALL_WAIT_SYNC_FILE_RANGE, 3, 0},
		{"msync 7", NULL, STALL_WAIT_MSYNC, 7, 0},
		{"syncfs 2", "known-syncfs", STALL_WAIT_SYNCFS, 2, 0},
		{"fallocate 29", "known-fallocate", STALL_WAIT_FALLOCATE, 29, 0},
		{"ftruncate 11", "known-ftruncate", STALL_WAIT_FTRUNCATE, 11, 0},
		{"extend 13 8192", "known-extend", STALL_WAIT_EXTEND, 13, 13 * 8192},
		{"unlink 17", "known-other-unlink", STALL_WAIT_UNLINK, 17, 0},
		{"rename 19", "known-other-rename", STALL_WAIT_RENAME, 19, 0},
		{"write 37 65536", "known-write", STALL_WAIT_WRITE, 37, 37 * 65536},
		{"read 41 65536", "known-read", STALL_WAIT_READ, 41, 41 * 65536},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		actor_does(actor, known[i].command);
		watcher_take(watcher);
		size_t count, total = 0;
		const volatile struct stall_wait_stat *stats =
			stall_bpf_waits_stats(watcher->waits, &count);
		if (!known[i].name) {
			for (size_t s = 0; s < count; s++) {
				if (stats[s].used && stats[s].key.kind == known[i].kind)
					total += stat_count(&stats[s]);
			}
			CHECK_INT(total, known[i].count);
			continue;
		}
		const struct stall_wait_file *file =
			find_file(watcher, known[i].kind, known[i].name);
		CHECK(file);
		if (!file) {
			fprintf(stderr, "no file was reported for: %s\n", known[i].command);
			continue;
		}
		const volatile struct stall_wait_stat *stat =
			find_stat(watcher, actor->target.pid, known[i].kind, file->key.id);
		CHECK_INT(stat_count(stat), known[i].count);
		CHECK(stat && stat->bytes == known[i].bytes);
		check_file(file, actor, known[i].name);
	}
}

static void check_programs(const struct watcher *watcher, bool no_timer)
{
	size_t count;
	const struct stall_wait_program *programs =
		stall_bpf_waits_programs(watcher->waits, &count);

	CHECK_INT(stall_bpf_waits_has_timer(watcher->waits), !no_timer);
	CHECK_INT(count, 8);
	for (size_t i = 0; i < count; i++)
		CHECK((!strcmp(programs[i].name, "timer") && no_timer) == !!programs[i].why_not);
}

// A condition variable is no stall; its first wait is reported once, so that it can be known.
static void test_condition(struct watcher *watcher, struct actor *actor)
{
	const volatile struct stall_wait_stat *cond = NULL;
	size_t before = count_records(watcher, STALL_RECORD_END, 0);
	uint64_t object = actor_locks(actor, "cond 1 1");

	CHECK(await_records(watcher, STALL_RECORD_END, 0, before + 1));
	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct stall_wait_record *record = &watcher->records[i];

		if (record->type != STALL_RECORD_END || record->key.id - object >= 48)
			continue;
		CHECK(record->flags & STALL_SLOT_FIRST);
		cond = find_stat(watcher, actor->target.pid, STALL_WAIT_FUTEX, record->key.id);
		stall_bpf_waits_set_role(watcher->waits, &record->key, STALL_ROLE_COND);
	}
	CHECK(cond);
	// glibc waits on two words in turn, by groups.
	uint64_t known = stall_clock_ns(CLOCK_MONOTONIC), id = cond ? cond->key.id : 0;
	actor_does(actor, "cond 8 40");
	watcher_take(watcher);
	CHECK(stat_count(cond) > 1);
	for (size_t i = 0; i < watcher->record_count; i++)
		CHECK(watcher->records[i].key.id != id || watcher->records[i].start_ns < known);
}

// What a record has of a wait for the mutex, and of who released it.
static void check_record(const struct stall_wait_record *record, uint64_t word, uint64_t since_ns)
{
	CHECK(record->stack_size > 0 || record->type == STALL_RECORD_IN_FLIGHT);
	if (record->type == STALL_RECORD_WAKER)
		return;
	CHECK_STRING(record->comm, "waiter");
	CHECK(record->flags & STALL_SLOT_ADOPTED);
	CHECK(record->flags & STALL_SLOT_REPORTED);
	CHECK(record->start_ns >= since_ns);
	CHECK_INT(record->result, 0);
	if (record->type == STALL_RECORD_END) {
		CHECK(record->flags & STALL_SLOT_MARKED);
	} else {
		CHECK_INT(record->type, STALL_RECORD_IN_FLIGHT);
		CHECK_INT(record->regs[STALL_BPF_ORIG_AX], 202);
		CHECK_INT(record->regs[STALL_BPF_DI], word);
	}
}

// Threads that wait already when they are first watched. Each is reported while it waits, and at its
// end, and so is who released it.
static void test_adopted(bool no_timer)
{
	static const uint32_t types[] = {STALL_RECORD_IN_FLIGHT, STALL_RECORD_WAKER,
					 STALL_RECORD_END};
	struct stall_bpf_waits_options options = options_of(ALL_KINDS, 20 * MS);
	struct actor actor;

	options.no_timer = no_timer;
	CHECK(actor_start(&actor, "4", "1"));
	uint64_t word = actor_locks(&actor, "hold mutex 3");
	uint64_t before = stall_clock_ns(CLOCK_MONOTONIC);
	struct watcher *watcher = watcher_start(&options, actor.target.pid);
	check_programs(watcher, no_timer);
	CHECK(await_records(watcher, STALL_RECORD_IN_FLIGHT, word, 3));
	// Idle threads' too.
	CHECK_INT(count_records(watcher, STALL_RECORD_IN_FLIGHT, 0), watcher->record_count);
	actor_does(&actor, "release");
	CHECK(await_records(watcher, STALL_RECORD_END, word, 3));
	const struct stall_wait_record *waker = NULL;
	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct stall_wait_record *record = &watcher->records[i];

		if (record->key.id == word)
			check_record(record, word, before);
		if (record->key.id == word && record->type == STALL_RECORD_WAKER && !waker)
			waker = record; // the waiters let in each other
	}
	CHECK_STRING(waker ? waker->comm : NULL, "holder");
	for (int i = 0; i < 3; i++)
		CHECK_INT(count_records(watcher, types[i], word), 3);
	const volatile struct stall_wait_stat *stat =
		find_stat(watcher, actor.target.pid, STALL_WAIT_FUTEX, word);
	CHECK_INT(stat_count(stat), 3);
	CHECK(stat && stat->over == 3 && stat->marked == 0);
	if (!no_timer) {
		test_condition(watcher, &actor);
		test_operations(watcher, &actor);
	}
	check_nothing_lost(watcher);
	watcher_stop(watcher);
	actor_stop(&actor);
}

int main(void)
{
	int skip = require_waits();

	if (skip)
		return skip;
	test_adopted(false);
	test_adopted(true);
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// The wait programs on a process whose waits are known: each is counted, and reported from both
// ends.
#include "ebpf/waits_read.h"
#include "waits_watcher.h"

#include <sys/sysmacros.h>

#define LATEST_NS (5 * MS) // from the threshold to this program
#define LENGTH_NS (2 * MS)
#define ROUNDS 31

static int64_t int_member(json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

// The record of a type that this thread sent between two moments.
static const struct reported *find_reported(const struct watcher *watcher, uint32_t type, pid_t tid,
					    uint64_t from, uint64_t to)
{
	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct reported *reported = &watcher->records[i];

		if (reported->record.type == type && reported->record.tid == tid &&
		    reported->record.now_ns >= from && reported->record.now_ns <= to)
			return reported;
	}
	return NULL;
}

static int compare_times(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

// One wait for a lock, as the target reports it: it ended, it was reported in flight, and its waker
// is the holder. It lasted from when its thread was seen asleep at least, and no longer than the
// thread says. Returns how much longer the thread says.
static uint64_t check_wait(const struct watcher *watcher, json_t *call, pid_t holder, uint64_t word,
			   uint64_t threshold)
{
	pid_t tid = int_member(call, "tid");
	uint64_t start = int_member(call, "start_ns"), length = int_member(call, "length_ns");
	uint64_t released = int_member(call, "released_ns");
	const struct reported *end =
		find_reported(watcher, STALL_RECORD_END, tid, start, start + length);
	const struct reported *flight =
		find_reported(watcher, STALL_RECORD_IN_FLIGHT, tid, start, start + length);
	const struct reported *waker =
		find_reported(watcher, STALL_RECORD_WAKER, holder, released, start + length);

	CHECK(end && flight && waker);
	if (!end || !flight || !waker)
		return 0;
	uint64_t reported = end->record.now_ns - end->record.start_ns;
	CHECK(reported <= length);
	CHECK(reported >= released - (uint64_t)int_member(call, "asleep_ns"));
	CHECK_INT(end->record.key.id, word);
	CHECK_INT(end->record.result, 0);
	CHECK((end->record.flags & STALL_SLOT_REPORTED) && (end->record.flags & STALL_SLOT_MARKED));
	CHECK_STRING(end->record.comm, "waiter");
	CHECK(end->record.stack_size > 0);
	CHECK_INT(flight->record.seq, end->record.seq);
	CHECK_INT(flight->record.start_ns, end->record.start_ns);
	CHECK_INT(flight->record.regs[STALL_BPF_ORIG_AX], 202);
	CHECK_INT(flight->record.regs[STALL_BPF_DI], word);
	CHECK_STRING(flight->record.comm, "waiter");
	CHECK(flight->record.now_ns - flight->record.start_ns >= threshold);
	CHECK_STRING(waker->record.comm, "holder");
	CHECK_INT(waker->record.key.id, word);
	CHECK(waker->record.stack_size > 0);
	return reported <= length ? length - reported : 0;
}

// Other load on the machine can only make these values larger, so the least of them counts: how
// much longer than reported a thread was asleep, or how late a reader is.
static void check_least(const char *what, uint64_t *values, size_t count, uint64_t limit)
{
	CHECK(count > 0);
	if (!count)
		return;
	qsort(values, count, sizeof(values[0]), compare_times);
	printf("%s: %zu, by %.3f ms at least, %.3f ms at the median, %.3f ms at most\n", what,
	       count, values[0] / 1e6, values[count / 2] / 1e6, values[count - 1] / 1e6);
	CHECK(values[0] < limit);
}

// How late this program receives records of waits that pass their threshold.
static void check_lateness(const struct watcher *watcher, uint64_t word, uint64_t threshold)
{
	uint64_t late[MAX_RECORDS];
	size_t count = 0;

	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct reported *reported = &watcher->records[i];

		if (reported->record.type == STALL_RECORD_IN_FLIGHT &&
		    reported->record.key.id == word)
			late[count++] =
				reported->received_ns - reported->record.start_ns - threshold;
	}
	check_least("reported late", late, count, LATEST_NS);
}

static void test_mutex(struct watcher *watcher, struct actor *actor, uint64_t word,
		       uint64_t threshold)
{
	uint64_t differences[ROUNDS];

	for (size_t i = 0; i < ROUNDS; i++) {
		json_t *answer = wait_reported(&watcher, 1, actor, 1, word);
		json_t *calls = json_object_get(answer, "calls");

		CHECK_INT(json_array_size(calls), 1);
		CHECK(await_records(watcher, STALL_RECORD_END, word, i + 1));
		differences[i] = check_wait(watcher, json_array_get(calls, 0),
					    int_member(answer, "holder"), word, threshold);
		json_decref(answer);
	}
	CHECK_INT(count_records(watcher, STALL_RECORD_END, word), ROUNDS);
	CHECK_INT(count_records(watcher, STALL_RECORD_IN_FLIGHT, word), ROUNDS);
	CHECK_INT(count_records(watcher, STALL_RECORD_WAKER, word), ROUNDS);
	const volatile struct stall_wait_stat *stat =
		find_stat(watcher, actor->pid, STALL_WAIT_FUTEX, word);
	CHECK_INT(stat_count(stat), ROUNDS);
	CHECK(stat && stat->over == ROUNDS && stat->marked == 0);
	check_least("lengths reported too short", differences, ROUNDS, LENGTH_NS);
	check_lateness(watcher, word, threshold);
}

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
		json_decref(actor_do(actor, known[i].command));
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
			find_stat(watcher, actor->pid, known[i].kind, file->key.id);
		CHECK_INT(stat_count(stat), known[i].count);
		CHECK(stat && stat->bytes == known[i].bytes);
		check_file(file, actor, known[i].name);
	}
}

static void check_known(bool no_timer)
{
	struct stall_bpf_waits_options options;
	struct watcher *watcher = calloc(1, sizeof(*watcher));
	struct actor actor;
	size_t count;

	set_thresholds(&options, 10 * MS);
	options.no_timer = no_timer;
	CHECK(actor_start(&actor, "4", "0"));
	json_t *answer = actor_do(&actor, "mutex 1 1");
	uint64_t word = hex_member(answer, "address");
	json_decref(answer);
	CHECK_OK(stall_bpf_waits_create(&options, &watcher->waits));
	CHECK_INT(stall_bpf_waits_has_timer(watcher->waits), !no_timer);
	const struct stall_wait_program *programs =
		stall_bpf_waits_programs(watcher->waits, &count);
	CHECK_INT(count, 8);
	for (size_t i = 0; i < count; i++)
		CHECK((!strcmp(programs[i].name, "timer") && no_timer) == !!programs[i].why_not);
	CHECK_OK(stall_bpf_waits_add(watcher->waits, actor.pid));
	test_mutex(watcher, &actor, word, 10 * MS);
	test_operations(watcher, &actor);
	check_nothing_lost(watcher);
	stall_bpf_waits_destroy(watcher->waits);
	actor_stop(&actor);
	free(watcher);
}

// Threads that wait already when they are first watched. Their word's role decides what is
// reported.
static void test_adopted(void)
{
	struct stall_bpf_waits_options options;
	struct watcher *watcher = calloc(1, sizeof(*watcher));
	struct actor actor;
	int adopted = 0;

	set_thresholds(&options, 20 * MS);
	CHECK(actor_start(&actor, "4", "1"));
	json_t *answer = actor_do(&actor, "hold mutex 3");
	uint64_t word = hex_member(answer, "address");
	json_decref(answer);
	CHECK_OK(stall_bpf_waits_create(&options, &watcher->waits));
	uint64_t before = stall_clock_ns(CLOCK_MONOTONIC);
	CHECK_OK(stall_bpf_waits_add(watcher->waits, actor.pid));
	CHECK(await_records(watcher, STALL_RECORD_IN_FLIGHT, word, 3));
	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct stall_wait_record *record = &watcher->records[i].record;

		CHECK_INT(record->type, STALL_RECORD_IN_FLIGHT);
		CHECK(record->flags & STALL_SLOT_ADOPTED);
		CHECK(record->start_ns >= before);
		adopted += record->key.id == word;
	}
	CHECK_INT(adopted, 3);
	json_decref(actor_do(&actor, "release"));
	CHECK(await_records(watcher, STALL_RECORD_END, word, 3));
	CHECK_INT(stat_count(find_stat(watcher, actor.pid, STALL_WAIT_FUTEX, word)), 3);

	// A condition variable is no stall; its first wait is reported once, so that it can be
	// known.
	answer = actor_do(&actor, "cond 1 1");
	word = hex_member(answer, "address");
	json_decref(answer);
	CHECK(await_records(watcher, STALL_RECORD_END, 0, 4));
	const volatile struct stall_wait_stat *cond = NULL;
	for (size_t i = 0; i < watcher->record_count; i++) {
		const struct stall_wait_record *record = &watcher->records[i].record;

		if (record->type == STALL_RECORD_END && record->key.id - word < 48) {
			CHECK(record->flags & STALL_SLOT_FIRST);
			cond = find_stat(watcher, actor.pid, STALL_WAIT_FUTEX, record->key.id);
			stall_bpf_waits_set_role(watcher->waits, &record->key, STALL_ROLE_COND);
		}
	}
	CHECK(cond);
	// glibc waits on two words in turn, by groups.
	uint64_t known = stall_clock_ns(CLOCK_MONOTONIC), id = cond ? cond->key.id : 0;
	json_decref(actor_do(&actor, "cond 8 40"));
	watcher_take(watcher);
	CHECK(stat_count(cond) > 1);
	for (size_t i = 0; i < watcher->record_count; i++)
		CHECK(watcher->records[i].record.key.id != id ||
		      watcher->records[i].record.start_ns < known);
	stall_bpf_waits_destroy(watcher->waits);
	actor_stop(&actor);
	free(watcher);
}

// Two that watch the same process do not see each other.
static void test_two_loaders(void)
{
	struct stall_bpf_waits_options options;
	struct watcher *watchers[2];
	struct actor actor;

	set_thresholds(&options, 10 * MS);
	CHECK(actor_start(&actor, "1", "0"));
	json_t *answer = actor_do(&actor, "mutex 1 1");
	uint64_t word = hex_member(answer, "address");
	json_decref(answer);
	for (int i = 0; i < 2; i++) {
		watchers[i] = calloc(1, sizeof(*watchers[i]));
		CHECK_OK(stall_bpf_waits_create(&options, &watchers[i]->waits));
		CHECK_OK(stall_bpf_waits_add(watchers[i]->waits, actor.pid));
	}
	for (int i = 0; i < 7; i++)
		json_decref(wait_reported(watchers, 2, &actor, 1, word));
	for (int i = 0; i < 2; i++) {
		CHECK(await_records(watchers[i], STALL_RECORD_END, word, 7));
		CHECK_INT(count_records(watchers[i], STALL_RECORD_IN_FLIGHT, word), 7);
		CHECK_INT(count_records(watchers[i], STALL_RECORD_WAKER, word), 7);
		CHECK_INT(stat_count(find_stat(watchers[i], actor.pid, STALL_WAIT_FUTEX, word)), 7);
		check_nothing_lost(watchers[i]);
	}
	stall_bpf_waits_destroy(watchers[0]->waits);
	json_decref(
		actor_do(&actor, "mutex 2 20")); // so long that each is reported when it is over
	CHECK(await_records(watchers[1], STALL_RECORD_END, word, 9));
	stall_bpf_waits_destroy(watchers[1]->waits);
	actor_stop(&actor);
	free(watchers[0]);
	free(watchers[1]);
}

int main(void)
{
	int skip = require_waits();

	if (skip)
		return skip;
	check_known(false);
	check_known(true);
	test_adopted();
	test_two_loaders();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// A target that waits on request (tests/targets/known_waits.c), and a loader of the wait programs
// that keeps their records.
#ifndef STALL_WAITS_WATCHER_H
#define STALL_WAITS_WATCHER_H

#include "ebpf/waits_loader.h"

#include <jansson.h>
#include <poll.h>

#include "base/clock.h"
#include "check.h"
#include "ebpf/waits_read.h"
#include "target_process.h"

#define MS UINT64_C(1000000)
#define PATIENCE_NS (100000 * MS) // only a failure takes this long
#define MAX_RECORDS 4096

struct actor {
	struct target_process target;
	char folder[64];
};

static inline bool actor_start(struct actor *actor, const char *waiters, const char *idle)
{
	snprintf(actor->folder, sizeof(actor->folder), "/var/tmp/stall-waits-XXXXXX");
	if (!mkdtemp(actor->folder))
		return false;
	const char *const argv[] = {"known_waits", actor->folder, "--waiters", waiters,
				    "--idle",	   idle,	  NULL};
	return target_start(&actor->target, argv);
}

// The answer to a command; never NULL.
static inline json_t *actor_answer(struct actor *actor)
{
	char *line = NULL;
	size_t capacity = 0;
	json_t *answer = NULL;

	if (getline(&line, &capacity, actor->target.answers) > 0)
		answer = json_loads(line, 0, NULL);
	CHECK(answer && !json_object_get(answer, "error"));
	free(line);
	return answer ? answer : json_object();
}

static inline json_t *actor_do(struct actor *actor, const char *command)
{
	dprintf(actor->target.stdin_fd, "%s\n", command);
	return actor_answer(actor);
}

// Where it does not matter what it answers.
static inline void actor_does(struct actor *actor, const char *command)
{
	json_decref(actor_do(actor, command));
}

// The address of its lock, which its answers have.
static inline uint64_t actor_locks(struct actor *actor, const char *command)
{
	json_t *answer = actor_do(actor, command);
	const char *text = json_string_value(json_object_get(answer, "address"));
	uint64_t address = text ? strtoull(text, NULL, 16) : 0;

	json_decref(answer);
	return address;
}

static inline void actor_stop(struct actor *actor)
{
	char command[128];

	target_stop(&actor->target);
	snprintf(command, sizeof(command), "rm -r %s", actor->folder);
	CHECK_INT(system(command), 0);
}

struct watcher {
	struct stall_bpf_waits *waits;
	struct stall_wait_record records[MAX_RECORDS];
	struct stall_wait_file files[256];
	size_t record_count, file_count;
};

static inline struct watcher *watcher_start(const struct stall_bpf_waits_options *options,
					    pid_t pid)
{
	struct watcher *watcher = calloc(1, sizeof(*watcher));

	CHECK_OK(stall_bpf_waits_create(options, &watcher->waits));
	CHECK_OK(stall_bpf_waits_add(watcher->waits, pid));
	return watcher;
}

static inline void watcher_stop(struct watcher *watcher)
{
	stall_bpf_waits_destroy(watcher->waits);
	free(watcher);
}

static inline void keep_wait(void *arg, const struct stall_wait_record *record,
			     const uint8_t *stack)
{
	struct watcher *watcher = arg;
	volatile uint8_t sum = 0;

	for (uint32_t i = 0; i < record->stack_size; i++) // all of it is there
		sum += stack[i];
	if (watcher->record_count < MAX_RECORDS)
		watcher->records[watcher->record_count++] = *record;
}

static inline void keep_file(void *arg, const struct stall_wait_file *file)
{
	struct watcher *watcher = arg;

	if (watcher->file_count < 256)
		watcher->files[watcher->file_count++] = *file;
}

static inline void watcher_take(struct watcher *watcher)
{
	const struct stall_wait_handler handler = {
		.arg = watcher,
		.wait = keep_wait,
		.file = keep_file,
	};
	size_t count;

	CHECK_OK(stall_bpf_waits_consume(watcher->waits, &handler, 0, &count));
}

static inline size_t count_records(const struct watcher *watcher, uint32_t type, uint64_t id)
{
	size_t count = 0;

	for (size_t i = 0; i < watcher->record_count; i++)
		count += watcher->records[i].type == type &&
			 (!id || watcher->records[i].key.id == id);
	return count;
}

// Waits for this number of records; false after PATIENCE_NS.
static inline bool await_records(struct watcher *watcher, uint32_t type, uint64_t id, size_t wanted)
{
	uint64_t end = stall_clock_ns(CLOCK_MONOTONIC) + PATIENCE_NS;
	struct pollfd ring = {.fd = stall_bpf_waits_fd(watcher->waits), .events = POLLIN};
	bool timer = stall_bpf_waits_has_timer(watcher->waits);

	for (;;) {
		if (!timer)
			CHECK_OK(stall_bpf_waits_scan(watcher->waits));
		watcher_take(watcher);
		if (count_records(watcher, type, id) >= wanted)
			return true;
		if (stall_clock_ns(CLOCK_MONOTONIC) > end)
			return false;
		poll(&ring, 1, timer ? 100 : 1);
	}
}

// Lets this number of threads wait for the mutex `word` and releases it once the watcher has a record
// of each: only from then on their waker is recorded too.
static inline void wait_reported(struct watcher *watcher, struct actor *actor, size_t waiters,
				 uint64_t word)
{
	size_t before = count_records(watcher, STALL_RECORD_IN_FLIGHT, word);
	char command[32];

	snprintf(command, sizeof(command), "hold mutex %zu", waiters);
	actor_does(actor, command);
	CHECK(await_records(watcher, STALL_RECORD_IN_FLIGHT, word, before + waiters));
	actor_does(actor, "release");
}

static inline const volatile struct stall_wait_stat *find_stat(const struct watcher *watcher,
							       pid_t tgid,
							       enum stall_wait_kind kind,
							       uint64_t id)
{
	size_t count;
	const volatile struct stall_wait_stat *stats =
		stall_bpf_waits_stats(watcher->waits, &count);

	for (size_t i = 0; i < count; i++) {
		if (stats[i].used && stats[i].key.tgid == (uint32_t)tgid &&
		    stats[i].key.kind == kind && stats[i].key.id == id)
			return &stats[i];
	}
	return NULL;
}

static inline uint64_t stat_count(const volatile struct stall_wait_stat *stat)
{
	uint64_t count = 0;

	for (int i = 0; stat && i < STALL_WAIT_BUCKETS; i++)
		count += stat->bucket[i];
	return count;
}

static inline uint64_t lost(const struct watcher *watcher, enum stall_wait_lost cause)
{
	uint64_t losses[STALL_LOST_CAUSES];

	stall_bpf_waits_lost(watcher->waits, losses);
	return losses[cause];
}

static inline void check_nothing_lost(const struct watcher *watcher)
{
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		CHECK_INT(lost(watcher, i), 0);
}

// Of these kinds of waits, with one threshold for all.
static inline struct stall_bpf_waits_options options_of(uint32_t kinds, uint64_t threshold_ns)
{
	struct stall_bpf_waits_options options;

	stall_bpf_waits_options_init(&options);
	options.kinds &= kinds;
	for (int kind = 0; kind < STALL_WAIT_KINDS; kind++)
		options.threshold_ns[kind] = threshold_ns;
	return options;
}
#define ALL_KINDS (~0U)

// Returns the test's exit code where waits cannot be watched, else 0.
static inline int require_waits(void)
{
	struct stall_bpf_waits_options options;
	struct stall_bpf_waits *waits;

	stall_bpf_waits_options_init(&options);
	struct stall_error *err = stall_bpf_waits_create(&options, &waits);
	if (!err) {
		stall_bpf_waits_destroy(waits);
		return 0;
	}
	int end = check_missing("waits", err->message);
	stall_error_destroy(err);
	return end;
}

#endif

// SPDX-License-Identifier: Apache-2.0
// A target that waits on request (tests/targets/known_waits.c), and a loader of the wait programs
// that keeps their records.
#ifndef STALL_WAITS_WATCHER_H
#define STALL_WAITS_WATCHER_H

#include "ebpf/waits_loader.h"

#include <dirent.h>
#include <jansson.h>
#include <poll.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "check.h"
#include "ebpf/waits_read.h"
#include "target_process.h"

#define MS UINT64_C(1000000)
#define PATIENCE_NS (100000 * MS) // only a failure takes this long
#define MAX_RECORDS 4096

struct actor {
	pid_t pid;
	FILE *commands, *answers;
	char folder[64];
};

static inline bool actor_start(struct actor *actor, const char *waiters, const char *idle)
{
	char path[PATH_MAX], line[1024];
	int in[2], out[2];

	snprintf(actor->folder, sizeof(actor->folder), "/var/tmp/stall-waits-XXXXXX");
	target_path("known_waits", path);
	if (access(path, X_OK) < 0 || !mkdtemp(actor->folder) || pipe(in) < 0 || pipe(out) < 0)
		return false;
	actor->pid = fork();
	if (actor->pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		for (int fd = 3; fd < 256; fd++)
			close(fd);
		execl(path, path, actor->folder, "--waiters", waiters, "--idle", idle, NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	actor->commands = fdopen(in[1], "w");
	actor->answers = fdopen(out[0], "r");
	while (fgets(line, sizeof(line), actor->answers)) {
		if (!strcmp(line, "ready\n"))
			return target_wait_reading(actor->pid);
	}
	return false;
}

static inline void actor_send(struct actor *actor, const char *command)
{
	fprintf(actor->commands, "%s\n", command);
	fflush(actor->commands);
}

// The answer to a command; never NULL.
static inline json_t *actor_answer(struct actor *actor)
{
	char *line = NULL;
	size_t capacity = 0;
	json_t *answer = NULL;

	if (getline(&line, &capacity, actor->answers) > 0)
		answer = json_loads(line, 0, NULL);
	CHECK(answer && !json_object_get(answer, "error"));
	free(line);
	return answer ? answer : json_object();
}

static inline json_t *actor_do(struct actor *actor, const char *command)
{
	actor_send(actor, command);
	return actor_answer(actor);
}

static inline uint64_t hex_member(json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? strtoull(text, NULL, 16) : 0;
}

static inline void actor_stop(struct actor *actor)
{
	char path[512];
	DIR *folder = opendir(actor->folder);
	struct dirent *entry;

	kill(actor->pid, SIGKILL);
	waitpid(actor->pid, NULL, 0);
	fclose(actor->commands);
	fclose(actor->answers);
	while (folder && (entry = readdir(folder))) {
		snprintf(path, sizeof(path), "%s/%s", actor->folder, entry->d_name);
		unlink(path);
	}
	if (folder)
		closedir(folder);
	rmdir(actor->folder);
}

struct reported {
	struct stall_wait_record record;
	uint64_t received_ns;
};

struct watcher {
	struct stall_bpf_waits *waits;
	struct reported records[MAX_RECORDS];
	struct stall_wait_file files[256];
	size_t record_count, file_count;
};

static inline void keep_wait(void *arg, const struct stall_wait_record *record,
			     const uint8_t *stack)
{
	struct watcher *watcher = arg;
	volatile uint8_t sum = 0;

	for (uint32_t i = 0; i < record->stack_size; i++) // all of it is there
		sum += stack[i];
	if (watcher->record_count < MAX_RECORDS)
		watcher->records[watcher->record_count++] =
			(struct reported){*record, stall_clock_ns(CLOCK_MONOTONIC)};
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
		count += watcher->records[i].record.type == type &&
			 (!id || watcher->records[i].record.key.id == id);
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

// Lets this number of threads wait for the mutex `word` and releases it once all watchers have a
// record of each: only from then on their waker is recorded too. Returns what the target reports.
static inline json_t *wait_reported(struct watcher **watchers, size_t watcher_count,
				    struct actor *actor, size_t waiters, uint64_t word)
{
	char command[32];
	size_t before[4];

	for (size_t i = 0; i < watcher_count; i++)
		before[i] = count_records(watchers[i], STALL_RECORD_IN_FLIGHT, word);
	snprintf(command, sizeof(command), "hold mutex %zu", waiters);
	json_decref(actor_do(actor, command));
	for (size_t i = 0; i < watcher_count; i++)
		CHECK(await_records(watchers[i], STALL_RECORD_IN_FLIGHT, word,
				    before[i] + waiters));
	return actor_do(actor, "release");
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

static inline void set_thresholds(struct stall_bpf_waits_options *options, uint64_t ns)
{
	stall_bpf_waits_options_init(options);
	for (int kind = 0; kind < STALL_WAIT_KINDS; kind++)
		options->threshold_ns[kind] = ns;
}

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

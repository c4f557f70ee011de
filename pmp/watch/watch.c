// SPDX-License-Identifier: Apache-2.0
#include "watch/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "sources/sources.h"
#include "watch/watch_batch.h"
#include "watch/watch_processes.h"
#include "watch/watch_roles.h"
#include "watch/watch_samples.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"

// Address space only: pages are taken as stacks are copied. Copies of waiters' stacks are the
// largest, and those without room wait for the next batch.
#define ARENA_SIZE ((size_t)STALL_WATCH_BATCH * (STALL_WAIT_MAX_STACK + 4096))
#define STACKS_PER_SECOND 1000
#define DISPATCH_RECORDS 4096 // at once, so that other work is not delayed

void stall_watch_options_init(struct stall_watch_options *options)
{
	*options = (struct stall_watch_options){
		.kinds = stall_watch_kinds_parse("all"),
		.top = 20,
	};
	stall_wait_source_options_init(&options->source);
	options->worker.deadline_ms = STALL_DEFAULT_DEADLINE_MS;
}

void stall_watch_destroy(struct stall_watch *watch)
{
	if (!watch)
		return;
	stall_watch_samples_destroy(watch->samples);
	stall_wait_source_deinit(&watch->source);
	for (size_t i = 0; i < watch->item_count; i++)
		free(watch->items[i].symbol);
	free(watch->items);
	free(watch->waiting.keys);
	free(watch->counted);
	stall_wait_unwinder_destroy(watch->unwinder);
	stall_wait_table_destroy(watch->table);
	stall_wait_stacks_destroy(watch->stacks);
	stall_wait_processes_deinit(&watch->processes);
	stall_worker_destroy(watch->worker);
	if (watch->arena.base)
		stall_arena_deinit(&watch->arena);
	if (watch->epoll >= 0)
		close(watch->epoll);
	stall_json_deinit(&watch->events);
	stall_error_destroy(watch->failed);
	free(watch);
}

static struct stall_error *make_tables(struct stall_watch *watch)
{
	struct stall_error *err = stall_wait_stacks_create(&watch->stacks);

	if (!err)
		err = stall_wait_table_create(&watch->table);
	if (err)
		return err;
	watch->items = calloc(STALL_WATCH_BATCH, sizeof(*watch->items));
	return watch->items ? stall_watch_slots_grow(watch) : &stall_enomem;
}

static struct stall_error *make_unwinder(struct stall_watch *watch)
{
	struct stall_error *err = stall_arena_init(&watch->arena, ARENA_SIZE);

	// Make the child early: it then shares little of our memory, and none of the target's data.
	if (!err)
		err = stall_worker_create(&watch->arena, &watch->options.worker, &watch->worker);
	return err;
}

static struct stall_error *make_parts(struct stall_watch *watch, const pid_t *pids,
				      size_t pid_count)
{
	struct stall_error *err = make_unwinder(watch);

	if (!err)
		err = stall_wait_source_init(&watch->source, &watch->options.source, pids,
					     pid_count);
	if (!err)
		err = make_tables(watch);
	if (err)
		return err;
	watch->processes.source = &watch->source;
	const struct stall_wait_unwinder_options unwinder = {
		.arena = &watch->arena,
		.worker = watch->worker,
		.processes = &watch->processes,
		.stacks = watch->stacks,
		.stacks_per_second = STACKS_PER_SECOND,
	};
	err = stall_wait_unwinder_create(&unwinder, &watch->unwinder);
	if (!err)
		err = stall_watch_samples_create(watch, &watch->samples);
	return err ? err : stall_watch_poll_fd(watch, watch->source.calls->fd(watch->source.state));
}

struct stall_error *stall_watch_create(const struct stall_watch_options *options, const pid_t *pids,
				       size_t pid_count, stall_watch_event_fn handler, void *arg,
				       struct stall_watch **ret)
{
	_cleanup_(stall_watch_destroyp) struct stall_watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		return &stall_enomem;
	watch->options = *options;
	watch->options.source.kinds = stall_watch_wait_kinds(options->kinds);
	watch->handler = handler;
	watch->arg = arg;
	if (options->events)
		stall_json_open(&watch->events, '[');
	watch->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (watch->epoll < 0)
		return stall_error_os(errno, "epoll_create1");
	struct stall_error *err = make_parts(watch, pids, pid_count);
	for (size_t i = 0; !err && i < pid_count; i++)
		err = stall_watch_add(watch, pids[i]);
	if (err)
		return err;
	watch->started_ns = watch->line_ns = stall_clock_ns(CLOCK_MONOTONIC);
	*ret = no_cleanup_ptr(watch);
	return NULL;
}

void stall_watch_set_alarm(struct stall_watch *watch, stall_watch_alarm_fn alarm)
{
	watch->alarm = alarm;
}

struct stall_error *stall_watch_set_threshold(struct stall_watch *watch, const char *kind,
					      uint64_t ns)
{
	uint32_t asked = stall_watch_wait_kinds(stall_watch_kinds_parse(kind));

	if (!asked)
		return stall_error_create(STALL_ERROR_USAGE,
					  "\"%.40s\": no kind of wait and no group of kinds", kind);
	struct stall_error *err = NULL;
	for (int i = 0; !err && i < STALL_WAIT_KINDS; i++)
		if (asked & 1u << i)
			err = watch->source.calls->set_threshold(watch->source.state, i, ns);
	return err;
}

uint64_t stall_watch_threshold(const struct stall_watch *watch, enum stall_wait_kind kind)
{
	return watch->source.calls->threshold(watch->source.state, 0, kind);
}

int stall_watch_fd(const struct stall_watch *watch)
{
	return watch->epoll;
}

int stall_watch_timeout_ms(const struct stall_watch *watch)
{
	int source_ms = watch->source.calls->timeout_ms(watch->source.state);
	int sample_ms =
		stall_watch_samples_timeout_ms(watch->samples, stall_clock_ns(CLOCK_MONOTONIC));

	if (source_ms < 0 || sample_ms < 0)
		return source_ms < 0 ? sample_ms : source_ms;
	return source_ms < sample_ms ? source_ms : sample_ms;
}

static void take_record(void *arg, const struct stall_wait_record *record, const uint8_t *stack)
{
	stall_watch_take_record(arg, record, stack);
}

static void take_alarms(void *arg)
{
	struct stall_watch *watch = arg;

	if (!watch->failed)
		watch->failed = stall_watch_take_alarms(watch);
}

static void take_file(void *arg, const struct stall_wait_file *file)
{
	struct stall_watch *watch = arg;

	if (!watch->failed)
		watch->failed = stall_watch_name_file(watch, file);
}

// Whether there is more than records: the end of a process.
static bool has_ends(const struct stall_watch *watch)
{
	struct epoll_event events[64];
	int count = epoll_wait(watch->epoll, events, 64, 0);

	for (int i = 0; i < count; i++)
		if (events[i].data.fd != watch->source.calls->fd(watch->source.state))
			return true;
	return false;
}

static struct stall_error *consume(struct stall_watch *watch)
{
	const struct stall_wait_handler handler = {
		.arg = watch,
		.wait = take_record,
		.file = take_file,
		.alarms = take_alarms,
	};
	struct stall_error *err =
		watch->source.calls->consume(watch->source.state, &handler, DISPATCH_RECORDS);

	if (!err) {
		err = watch->failed;
		watch->failed = NULL;
	}
	return err ? err : stall_watch_flush(watch);
}

struct stall_error *stall_watch_dispatch(struct stall_watch *watch)
{
	bool changed = false;

	watch->received_ns = stall_clock_ns(CLOCK_MONOTONIC);
	watch->waiting.valid = false;
	struct stall_error *err =
		watch->source.calls->poll(watch->source.state, watch->received_ns, &changed);
	if (changed)
		watch->probes_written = false;
	if (!err)
		err = consume(watch);
	if (!err && has_ends(watch)) {
		err = consume(watch); // their last records
		if (!err)
			err = stall_watch_check_processes(watch);
	}
	// What has come has named locks and files.
	if (!err)
		err = stall_watch_samples_take(watch->samples, watch->received_ns);
	return err ? err : stall_watch_open_awaited(watch);
}

struct stall_error *stall_watch_dispatch_last(struct stall_watch *watch)
{
	if (watch->source.calls->hurry)
		watch->source.calls->hurry(watch->source.state);
	return stall_watch_dispatch(watch);
}

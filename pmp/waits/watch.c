// SPDX-License-Identifier: Apache-2.0
#include "waits/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "waits/watch_state.h"

// Address space only: pages are taken as stacks are copied. Copies of waiters' stacks are the
// largest, and what finds no room waits for the next batch.
#define ARENA_SIZE ((size_t)STALL_WATCH_BATCH * (STALL_WAIT_MAX_STACK + 4096))
#define STACKS_PER_SECOND 1000
#define AWAIT_NS UINT64_C(100000000) // from one look for those that are awaited to the next
#define DISPATCH_RECORDS 4096	     // at once, so that others have their turn

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

static struct stall_error *poll_too(struct stall_watch *watch, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (fd >= 0 && epoll_ctl(watch->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		return stall_error_os(errno, "epoll_ctl");
	return NULL;
}

// What is kept for each slot.
static struct stall_error *grow_tables(struct stall_watch *watch)
{
	size_t limit = watch->source.calls->slot_limit(watch->source.state), size = 64;

	if (watch->slot_count >= limit && watch->counted)
		return NULL;
	// Keys that are asked for stay in it too: as many as records in a batch.
	while (size < (limit + STALL_WATCH_BATCH) * 2)
		size *= 2;
	struct stall_watch_waiting_key *keys = calloc(size, sizeof(*keys));
	struct stall_watch_counted *counted = calloc(limit + 1, 2 * sizeof(*counted));
	if (!keys || !counted) {
		free(keys);
		free(counted);
		return &stall_enomem;
	}
	if (watch->slot_count)
		memcpy(counted, watch->counted, 2 * watch->slot_count * sizeof(*counted));
	free(watch->waiting.keys);
	free(watch->counted);
	watch->waiting = (struct stall_watch_waiting){.mask = size - 1, .keys = keys};
	watch->counted = counted;
	watch->slot_count = limit;
	return NULL;
}

static struct stall_error *make_tables(struct stall_watch *watch)
{
	struct stall_error *err = stall_wait_stacks_create(&watch->stacks);

	if (!err)
		err = stall_wait_table_create(&watch->table);
	if (err)
		return err;
	watch->items = calloc(STALL_WATCH_BATCH, sizeof(*watch->items));
	return watch->items ? grow_tables(watch) : &stall_enomem;
}

static struct stall_error *make_unwinder(struct stall_watch *watch)
{
	struct stall_error *err = stall_arena_init(&watch->arena, ARENA_SIZE);

	// The child is made early: it then has little of our memory, and none of the target's.
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
	return err ? err : poll_too(watch, watch->source.calls->fd(watch->source.state));
}

struct stall_error *stall_watch_create(const struct stall_watch_options *options, const pid_t *pids,
				       size_t pid_count, stall_watch_event_fn handler, void *arg,
				       struct stall_watch **ret)
{
	_cleanup_(stall_watch_destroyp) struct stall_watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		return &stall_enomem;
	watch->options = *options;
	watch->options.source.kinds = stall_watch_kinds_probes(options->kinds);
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

struct stall_error *stall_watch_probe_server(struct stall_watch *watch,
					     struct stall_wait_process *process)
{
	return watch->source.calls->probe_server(watch->source.state, watch->worker,
						 process->snapshot);
}

static struct stall_error *add(struct stall_watch *watch, pid_t pid)
{
	struct stall_error *err = stall_wait_processes_add(&watch->processes, &watch->arena, pid);

	if (err)
		return err;
	struct stall_wait_process *process = stall_wait_processes_find(&watch->processes, pid);
	err = poll_too(watch, stall_watch_target(process)->pidfd);
	if (!err)
		err = stall_watch_probe_server(watch, process);
	if (!err)
		err = watch->source.calls->add(watch->source.state, pid);
	if (!err)
		err = grow_tables(watch);
	if (err) {
		struct stall_error *failed = stall_watch_end(watch, process);
		stall_error_destroy(failed);
		watch->processes.count--;
		free(watch->processes.processes[watch->processes.count].exe);
	}
	return err;
}

// One more, where the watch goes on already, may be too young to have a ring: it is made when a thread
// has something to say. *err is taken over where it is awaited.
static bool await_process(struct stall_watch *watch, pid_t pid, struct stall_error **err)
{
	if (!*err || (*err)->code != STALL_ERROR_UNSUPPORTED || !watch->started_ns ||
	    !watch->source.calls->has_objects || watch->awaited_count == STALL_WATCH_AWAITED)
		return false;
	stall_error_destroy(*err);
	*err = NULL;
	watch->awaited[watch->awaited_count++] = pid;
	return true;
}

struct stall_error *stall_watch_add(struct stall_watch *watch, pid_t pid)
{
	struct stall_error *err = add(watch, pid);

	return await_process(watch, pid, &err) ? NULL : err;
}

static struct stall_error *look_for_awaited(struct stall_watch *watch)
{
	size_t count = watch->awaited_count;

	if (!count || watch->received_ns - watch->awaited_ns < AWAIT_NS)
		return NULL;
	watch->awaited_ns = watch->received_ns;
	watch->awaited_count = 0;
	for (size_t i = 0; i < count; i++) {
		pid_t pid = watch->awaited[i];
		struct stall_error *err = add(watch, pid);

		if (!err || await_process(watch, pid, &err))
			continue;
		if (err->code == STALL_ERROR_NO_MEMORY)
			return err;
		stall_error_destroy(err);
		watch->gone = pid;
	}
	return NULL;
}

void stall_watch_set_alarm(struct stall_watch *watch, stall_watch_alarm_fn alarm)
{
	watch->alarm = alarm;
}

struct stall_error *stall_watch_set_threshold(struct stall_watch *watch, const char *kind,
					      uint64_t ns)
{
	uint32_t probes = stall_watch_kinds_probes(stall_watch_kinds_parse(kind));

	if (!probes)
		return stall_error_create(STALL_ERROR_USAGE,
					  "\"%.40s\": no kind of wait and no group of kinds", kind);
	struct stall_error *err = NULL;
	for (int i = 0; !err && i < STALL_WAIT_KINDS; i++)
		if (probes & 1u << i)
			err = watch->source.calls->set_threshold(watch->source.state, i, ns);
	return err;
}

uint64_t stall_watch_threshold(const struct stall_watch *watch, enum stall_wait_kind kind)
{
	return watch->source.calls->threshold(watch->source.state, 0, kind);
}

size_t stall_watch_alive(const struct stall_watch *watch)
{
	return watch->processes.alive + watch->awaited_count;
}

pid_t stall_watch_take_ended(struct stall_watch *watch)
{
	pid_t gone = watch->gone;

	watch->gone = 0;
	if (gone)
		return gone;
	for (size_t i = 0; i < watch->processes.count; i++) {
		struct stall_wait_process *process = &watch->processes.processes[i];

		if (!process->ended || process->told)
			continue;
		process->told = true;
		return process->pid;
	}
	return 0;
}

int stall_watch_fd(const struct stall_watch *watch)
{
	return watch->epoll;
}

int stall_watch_timeout_ms(const struct stall_watch *watch)
{
	return watch->source.calls->timeout_ms(watch->source.state);
}

struct stall_error *stall_watch_end(struct stall_watch *watch, struct stall_wait_process *process)
{
	int pidfd = stall_watch_target(process)->pidfd;

	if (pidfd >= 0)
		epoll_ctl(watch->epoll, EPOLL_CTL_DEL, pidfd, NULL);
	struct stall_error *err = stall_watch_take_stats(watch);
	watch->source.calls->remove(watch->source.state, process->pid);
	stall_wait_process_end(&watch->processes, process);
	return err;
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

// Whether more than records is there: the end of a process.
static bool has_ends(const struct stall_watch *watch)
{
	struct epoll_event events[64];
	int count = epoll_wait(watch->epoll, events, 64, 0);

	for (int i = 0; i < count; i++)
		if (events[i].data.fd != watch->source.calls->fd(watch->source.state))
			return true;
	return false;
}

// Of processes whose end no record told.
static struct stall_error *check_processes(struct stall_watch *watch)
{
	for (size_t i = 0; i < watch->processes.count; i++) {
		struct stall_wait_process *process = &watch->processes.processes[i];

		if (process->ended)
			continue;
		struct stall_error *gone = stall_target_check(stall_watch_target(process));
		if (!gone)
			continue;
		stall_error_destroy(gone);
		struct stall_error *err = stall_watch_end(watch, process);
		if (err)
			return err;
	}
	return NULL;
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
		watch->source.calls->look(watch->source.state, watch->received_ns, &changed);
	if (changed)
		watch->told_probes = false;
	if (!err)
		err = consume(watch);
	if (!err && has_ends(watch)) {
		err = consume(watch); // the last that they said
		if (!err)
			err = check_processes(watch);
	}
	return err ? err : look_for_awaited(watch);
}

struct stall_error *stall_watch_dispatch_last(struct stall_watch *watch)
{
	if (watch->source.calls->hurry)
		watch->source.calls->hurry(watch->source.state);
	return stall_watch_dispatch(watch);
}

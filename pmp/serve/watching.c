// SPDX-License-Identifier: Apache-2.0
#include "serve/watching.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/answers.h"
#include "serve/captures.h"
#include "watch/watch_events.h"
#include "watch/watch_slots.h"

// Of several errors the first counts; takes the error over.
static void keep_error(struct stall_server *server, struct stall_error *err)
{
	if (!err)
		return;
	if (server->failed)
		stall_error_destroy(err);
	else
		server->failed = err;
}

static enum stall_trigger_verdict consider(struct stall_server *server,
					   const struct stall_trigger_wait *wait)
{
	struct stall_trigger trigger;
	enum stall_trigger_verdict verdict =
		stall_triggers_consider(&server->triggers, wait, stall_clock_ns(CLOCK_MONOTONIC),
					&trigger);

	// There is only one unfinished copy in memory: its event is late, or never comes.
	if (verdict == STALL_TRIGGER_NOW && server->taken)
		keep_error(server, stall_captures_finish(server, NULL, 0));
	if (verdict == STALL_TRIGGER_NOW && !server->failed)
		keep_error(server, stall_captures_begin(server, &trigger, wait->wait));
	return verdict;
}

static void handle_alarm(void *arg, const struct stall_watch_alarm *alarm)
{
	struct stall_server *server = arg;
	const struct stall_trigger_wait wait = {
		.wait = alarm->wait,
		.kind = stall_watch_kind_of(alarm->kind, alarm->role),
		.pid = alarm->tgid,
		.tid = alarm->tid,
		.start_ns = alarm->start_ns,
		.received_ns = alarm->received_ns,
		.threshold_ns = alarm->threshold_ns,
		.waiters = alarm->waiters,
	};

	// The kind of a futex without a role is not known yet. Its event will have it: threads that
	// wait for work must not take a capture.
	if (!server->failed && wait.kind != STALL_WATCH_FUTEX &&
	    server->watch_options.kinds & 1u << wait.kind)
		consider(server, &wait);
}

static enum stall_watch_kind kind_of(const struct stall_watch_event *event)
{
	uint32_t kinds = stall_watch_kinds_parse(event->kind);

	return kinds ? (enum stall_watch_kind)__builtin_ctz(kinds) : STALL_WATCH_FUTEX;
}

static void handle_event(void *arg, const struct stall_watch_event *event)
{
	struct stall_server *server = arg;
	const struct stall_trigger_wait wait = {
		.wait = event->wait,
		.name = event->name,
		.kind = kind_of(event),
		.pid = event->tgid,
		.tid = event->tid,
		.address = event->address,
		.start_ns = event->start_ns,
		.received_ns = event->received_ns,
		.threshold_ns = event->threshold_ns,
		.waiters = event->waiters,
	};

	if (server->failed)
		return;
	if (event->in_flight && !stall_watch_is_stale(server->watch, wait.wait, wait.received_ns) &&
	    consider(server, &wait) == STALL_TRIGGER_LATER)
		keep_error(server, stall_triggers_keep(&server->triggers, &wait));
	if (server->taken && event->in_flight && event->wait == server->taken_wait)
		keep_error(server, stall_captures_finish(server, event->name, event->address));
	if (server->options->events && !server->failed)
		keep_error(server, stall_answer_event(server, event));
}

// A wait that takes a capture must be reported in time, so use the lower of both thresholds.
static uint64_t effective_ns(const struct stall_server *server, enum stall_wait_kind probe)
{
	uint64_t lowest = server->asked_ns[probe];

	for (int i = 0; i < STALL_WATCH_KINDS; i++) {
		uint64_t capture = server->triggers.rules.threshold_ns[i];
		if (stall_watch_wait_kind(i) == probe && capture && capture < lowest)
			lowest = capture;
	}
	return lowest;
}

static struct stall_error *apply_thresholds(struct stall_server *server)
{
	for (int i = 0; i < STALL_WATCH_KINDS; i++) {
		enum stall_wait_kind probe = stall_watch_wait_kind(i);
		uint64_t ns = effective_ns(server, probe);
		if (!server->watch || stall_watch_threshold(server->watch, probe) == ns)
			continue;
		struct stall_error *err =
			stall_watch_set_threshold(server->watch, stall_watch_kind_name(i), ns);
		if (err)
			return err;
	}
	return NULL;
}

// Thresholds that were not requested stay as the processes have set them.
static struct stall_error *settle_thresholds(struct stall_server *server)
{
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if (!(server->watch_options.source.asked & 1u << i))
			server->asked_ns[i] = stall_watch_threshold(server->watch, i);
	struct stall_error *err = apply_thresholds(server);
	if (!err || err->code != STALL_ERROR_UNSUPPORTED)
		return err;
	// They cannot be changed: the line reports that, and captures are late accordingly.
	stall_error_destroy(err);
	return NULL;
}

struct stall_error *stall_watching_set_threshold(struct stall_server *server, uint32_t kinds,
						 uint64_t ns)
{
	uint32_t asked = stall_watch_wait_kinds(kinds);

	server->watch_options.source.asked |= asked;
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if (asked & 1u << i)
			server->asked_ns[i] = ns;
	return apply_thresholds(server);
}

struct stall_error *stall_watching_set_capture_threshold(struct stall_server *server,
							 uint32_t kinds, uint64_t ns)
{
	stall_triggers_set(&server->triggers, kinds, ns);
	return apply_thresholds(server);
}

// Of this watch, too. A thread that cannot be ignored any more has ended.
static void ignore_again(struct stall_server *server)
{
	const struct stall_own_threads before = server->own;

	for (size_t i = 0; i < before.count; i++) {
		const struct stall_own_thread *thread = &before.threads[i];
		struct stall_error *err =
			stall_watch_ignore(server->watch, thread->pid, thread->tid, true);

		if (err)
			stall_own_threads_remove(&server->own, thread->pid, thread->tid);
		stall_error_destroy(err);
	}
}

struct stall_error *stall_watching_on(struct stall_server *server)
{
	_cleanup_free_ pid_t *pids = NULL;

	if (server->watch)
		return NULL;
	memcpy(server->watch_options.source.threshold_ns, server->asked_ns,
	       sizeof(server->asked_ns));
	pids = calloc(server->target_count + 1, sizeof(*pids));
	if (!pids)
		return &stall_enomem;
	for (size_t i = 0; i < server->target_count; i++)
		pids[i] = server->targets[i].pid;
	struct stall_error *err =
		stall_watch_create(&server->watch_options, pids, server->target_count, handle_event,
				   server, &server->watch);
	if (!err)
		err = settle_thresholds(server);
	if (err)
		return err;
	ignore_again(server);
	stall_watch_set_alarm(server->watch, handle_alarm);
	stall_triggers_forget(&server->triggers);
	server->alerts = 0;
	if (server->options->line_ns)
		server->next_line_ns = stall_clock_ns(CLOCK_MONOTONIC) + server->options->line_ns;
	return NULL;
}

void stall_watching_off(struct stall_server *server)
{
	stall_watch_destroy(server->watch);
	server->watch = NULL;
	server->next_line_ns = 0;
}

struct stall_error *stall_watching_write(struct stall_server *server, bool final)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};
	struct stall_error *err = stall_watch_write(server->watch, final, &json);

	return err ? err : stall_answer(server, &json);
}

// Waits that were too short for a capture when their records were received, and are still in
// flight.
static void run_due(struct stall_server *server)
{
	struct stall_trigger_wait wait;
	char *name;

	while (!server->failed &&
	       stall_triggers_take_due(&server->triggers, stall_clock_ns(CLOCK_MONOTONIC), &wait,
				       &name)) {
		wait.waiters = stall_watch_still_waiting(server->watch, wait.wait);
		if (wait.waiters)
			consider(server, &wait);
		if (server->taken && !server->failed)
			keep_error(server, stall_captures_finish(server, name, wait.address));
		free(name);
	}
}

static struct stall_error *run_line(struct stall_server *server)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t alerts = stall_watch_alerts(server->watch);
	bool is_alert = alerts != server->alerts;

	if (!server->next_line_ns || (now_ns < server->next_line_ns && !is_alert))
		return NULL;
	server->alerts = alerts;
	// A line that a capture has delayed is not written later. The first long wait for a second
	// is in a line at once: who reads the lines may have to look at the server in time.
	server->next_line_ns += server->options->line_ns;
	if (server->next_line_ns <= now_ns || is_alert)
		server->next_line_ns = now_ns + server->options->line_ns;
	return stall_watching_write(server, false);
}

struct stall_error *stall_watching_run(struct stall_server *server)
{
	if (!server->watch)
		return NULL;
	keep_error(server, stall_watch_dispatch(server->watch));
	// Its wait had ended before it could be read: no event.
	if (server->taken && !server->failed)
		keep_error(server, stall_captures_finish(server, NULL, 0));
	run_due(server);
	struct stall_error *failed = no_cleanup_ptr(server->failed);
	return failed ? failed : run_line(server);
}

int stall_watching_next_ms(const struct stall_server *server)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t next_ns = stall_triggers_next_ns(&server->triggers);

	if (!server->watch)
		return -1;
	if (server->next_line_ns && server->next_line_ns < next_ns)
		next_ns = server->next_line_ns;
	int watch_ms = stall_watch_timeout_ms(server->watch);
	if (next_ns == UINT64_MAX)
		return watch_ms;
	// Rounded up: waking too early would mean waking twice.
	uint64_t ms = next_ns <= now_ns ? 0 : (next_ns - now_ns + 999999) / 1000000;
	if (ms > INT_MAX)
		ms = INT_MAX;
	return watch_ms >= 0 && watch_ms < (int)ms ? watch_ms : (int)ms;
}

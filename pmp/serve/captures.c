// SPDX-License-Identifier: Apache-2.0
#include "serve/captures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/output.h"
#include "serve/answers.h"

static struct stall_error *open_output(struct stall_server *server, const char *path,
				       struct stall_output **ret)
{
	if (path)
		return stall_output_create(path, server->options->force_overwrite, ret);
	return stall_output_create_fd(server->out, ret);
}

// What the connections ran during the captures since the last call. `wanted` false: they are dropped.
static struct stall_error *answer_sessions(struct stall_server *server, bool wanted)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	_cleanup_free_ char *lines = NULL;
	size_t size = 0;
	struct stall_error *err = stall_capturer_sessions(server->capturer, &lines, &size);

	if (err || !wanted || !size)
		return err;
	err = stall_output_create_fd(server->out, &output);
	if (!err)
		err = stall_output_write(output, lines, size);
	return err ? err : stall_output_commit(output);
}

static struct stall_error *snap(struct stall_server *server, const char *path, bool *ret_partial)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_error *err = open_output(server, path, &output);

	if (!err)
		err = stall_capturer_take(server->capturer);
	// First, so that a reader of the answers has them when the capture is whole.
	if (!err)
		err = answer_sessions(server, true);
	if (!err)
		err = stall_capturer_finish(server->capturer, NULL, output, ret_partial);
	return err ? err : stall_output_commit(output);
}

struct stall_error *stall_captures_snap(struct stall_server *server, const char *path)
{
	bool partial;
	struct stall_error *failed = stall_captures_end_burst(server);

	if (failed)
		return failed;
	failed = snap(server, path, &partial);
	if (failed)
		return stall_answer_failed(server, failed);
	return path ? stall_answer_written(server, path, partial) : NULL;
}

// Takes the error over.
static struct stall_error *report_failure(struct stall_server *server, struct stall_error *failed)
{
	struct stall_error *err =
		stall_answer_not_captured(server, failed->message, &server->trigger);

	stall_error_destroy(failed);
	return err;
}

void stall_captures_deinit(struct stall_server *server)
{
	stall_burst_destroy(server->burst);
	stall_output_destroy(server->burst_output);
	free(server->burst_path);
	server->burst = NULL;
	server->burst_output = NULL;
	server->burst_path = NULL;
}

static struct stall_error *begin_burst(struct stall_server *server, const char *path,
				       const struct stall_trigger *trigger)
{
	server->burst_path = strdup(path);
	if (!server->burst_path)
		return &stall_enomem;
	struct stall_error *err =
		stall_output_create(path, server->options->force_overwrite, &server->burst_output);

	if (!err)
		err = stall_burst_begin(server->capturer, &server->options->burst, trigger,
					trigger != NULL, server->burst_output, &server->burst);
	server->burst_trigger = trigger != NULL;
	if (err)
		stall_captures_deinit(server);
	return err;
}

// Says that the burst failed, and forgets it. Takes the error over.
static struct stall_error *fail_burst(struct stall_server *server, struct stall_error *failed)
{
	bool trigger = server->burst_trigger;

	stall_captures_deinit(server);
	stall_error_destroy(answer_sessions(server, false));
	return trigger ? report_failure(server, failed) : stall_answer_failed(server, failed);
}

struct stall_error *stall_captures_end_burst(struct stall_server *server)
{
	bool partial = false;

	if (!server->burst)
		return NULL;
	struct stall_error *failed = stall_burst_finish(server->burst, &partial), *err;
	if (!failed)
		failed = stall_output_commit(server->burst_output);
	if (failed)
		return fail_burst(server, failed);
	err = answer_sessions(server, true);
	if (err)
		return err;
	if (server->burst_trigger)
		err = stall_answer_captured(server, server->burst_path, partial, &server->trigger);
	else
		err = stall_answer_written(server, server->burst_path, partial);
	stall_captures_deinit(server);
	return err;
}

struct stall_error *stall_captures_burst(struct stall_server *server, const char *path)
{
	struct stall_error *failed = stall_captures_end_burst(server);

	if (!failed)
		failed = begin_burst(server, path, NULL);
	return failed ? stall_answer_failed(server, failed) : NULL;
}

struct stall_error *stall_captures_run(struct stall_server *server)
{
	if (!server->burst)
		return NULL;
	uint64_t next_ns = stall_burst_next_ns(server->burst);
	if (next_ns > stall_clock_ns(CLOCK_MONOTONIC))
		return NULL;
	struct stall_error *failed = next_ns ? stall_burst_step(server->burst) : NULL;
	if (failed)
		return fail_burst(server, failed);
	return stall_burst_next_ns(server->burst) ? NULL : stall_captures_end_burst(server);
}

int stall_captures_sooner_ms(const struct stall_server *server, int timeout_ms)
{
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);

	if (!server->burst)
		return timeout_ms;
	uint64_t next_ns = stall_burst_next_ns(server->burst);
	int ms = next_ns > now ? (int)((next_ns - now + 999999) / 1000000) : 0;
	return timeout_ms >= 0 && timeout_ms < ms ? timeout_ms : ms;
}

struct stall_error *stall_captures_begin(struct stall_server *server,
					 const struct stall_trigger *trigger, uint64_t wait)
{
	struct stall_error *failed = stall_captures_end_burst(server);

	if (failed)
		return failed;
	server->trigger = *trigger;
	server->taken_wait = wait;
	server->taken_wall_ns = stall_clock_ns(CLOCK_REALTIME);
	failed = stall_capturer_take(server->capturer);
	server->trigger.copied_ns = stall_clock_ns(CLOCK_MONOTONIC);
	if (failed)
		return report_failure(server, failed);
	server->taken = true;
	return NULL;
}

// "DIR/20261121T120528.123456Z-mutex-4711.jsonl.zst"
static struct stall_error *file_name(const struct stall_server *server, char **ret)
{
	time_t seconds = server->taken_wall_ns / 1000000000;
	char date[32];
	struct tm tm;

	gmtime_r(&seconds, &tm);
	strftime(date, sizeof(date), "%Y%m%dT%H%M%S", &tm);
	if (asprintf(ret, "%s/%s.%06uZ-%s-%d.jsonl.zst", server->options->captures, date,
		     (unsigned int)(server->taken_wall_ns / 1000 % 1000000), server->trigger.kind,
		     server->trigger.tid) < 0) {
		*ret = NULL;
		return &stall_enomem;
	}
	return NULL;
}

static struct stall_error *finish(struct stall_server *server, const char *path, bool *ret_partial)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_error *err = open_output(server, path, &output);

	if (!err)
		err = stall_capturer_finish(server->capturer, &server->trigger, output,
					    ret_partial);
	return err ? err : stall_output_commit(output);
}

struct stall_error *stall_captures_finish(struct stall_server *server, const char *name,
					  uint64_t address)
{
	_cleanup_free_ char *path = NULL;
	struct stall_error *failed = NULL;
	bool partial;

	server->taken = false;
	if (name)
		stall_trigger_set_name(&server->trigger, name);
	if (address)
		server->trigger.address = address;
	if (server->options->captures)
		failed = file_name(server, &path);
	if (!failed && path && server->options->burst.captures > 1) {
		failed = begin_burst(server, path, &server->trigger);
		return failed ? report_failure(server, failed) : NULL;
	}
	if (!failed)
		failed = finish(server, path, &partial);
	struct stall_error *err = answer_sessions(server, !failed);
	if (failed) {
		stall_error_destroy(err);
		return report_failure(server, failed);
	}
	if (err)
		return err;
	return path ? stall_answer_captured(server, path, partial, &server->trigger) : NULL;
}

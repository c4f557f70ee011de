// SPDX-License-Identifier: Apache-2.0
#include "serve/captures.h"

#include <stdio.h>
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

static struct stall_error *snap(struct stall_server *server, const char *path, bool *ret_partial)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_error *err = open_output(server, path, &output);

	if (!err)
		err = stall_capturer_capture(server->capturer, output, ret_partial);
	return err ? err : stall_output_commit(output);
}

struct stall_error *stall_captures_snap(struct stall_server *server, const char *path)
{
	bool partial;
	struct stall_error *failed = snap(server, path, &partial);

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

struct stall_error *stall_captures_begin(struct stall_server *server,
					 const struct stall_trigger *trigger, uint64_t wait)
{
	server->trigger = *trigger;
	server->taken_wait = wait;
	server->taken_wall_ns = stall_clock_ns(CLOCK_REALTIME);
	struct stall_error *failed = stall_capturer_take(server->capturer);
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
		server->trigger.name = name;
	if (address)
		server->trigger.address = address;
	if (server->options->captures)
		failed = file_name(server, &path);
	if (!failed)
		failed = finish(server, path, &partial);
	if (failed)
		return report_failure(server, failed);
	return path ? stall_answer_captured(server, path, partial, &server->trigger) : NULL;
}

// SPDX-License-Identifier: Apache-2.0
#include "serve/answers.h"

#include "base/cleanup.h"
#include "base/messages.h"
#include "watch/watch_events.h"

struct stall_error *stall_answer(struct stall_server *server, struct stall_json *json)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_error *err = stall_output_create_fd(server->out, &output);

	return err ? err : stall_message_write(json, output);
}

static struct stall_error *end(struct stall_server *server, struct stall_json *json)
{
	stall_json_close(json, '}');
	return stall_answer(server, json);
}

struct stall_error *stall_answer_ready(struct stall_server *server)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "ready");
	return end(server, &json);
}

static struct stall_error *say(struct stall_server *server, const char *type, const char *message)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_text(&json, type, message);
	return stall_answer(server, &json);
}

struct stall_error *stall_answer_error(struct stall_server *server, const char *message)
{
	return say(server, "error", message);
}

struct stall_error *stall_answer_ended(struct stall_server *server, const char *message)
{
	return say(server, "ended", message);
}

struct stall_error *stall_answer_written(struct stall_server *server, const char *path,
					 bool partial)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "written");
	stall_json_member_string(&json, "path", path);
	stall_json_member_bool(&json, "partial", partial);
	return end(server, &json);
}

struct stall_error *stall_answer_watch(struct stall_server *server)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "watch");
	stall_json_member_bool(&json, "on", server->watch);
	return end(server, &json);
}

struct stall_error *stall_answer_threshold(struct stall_server *server, const char *command,
					   const char *kind, uint64_t ns)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_threshold(&json, command, kind, ns);
	return stall_answer(server, &json);
}

struct stall_error *stall_answer_layout(struct stall_server *server)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "layout");
	stall_json_member_uint(&json, "entries", server->layout.count);
	return end(server, &json);
}

struct stall_error *stall_answer_thread(struct stall_server *server, const char *type, pid_t pid,
					pid_t tid)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_thread(&json, type, pid, tid);
	return stall_answer(server, &json);
}

struct stall_error *stall_answer_not_ignored(struct stall_server *server,
					     struct stall_error *failed)
{
	struct stall_error *err = say(server, "not-ignored", failed->message);

	stall_error_destroy(failed);
	return err;
}

struct stall_error *stall_answer_target(struct stall_server *server, pid_t pid)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_pid(&json, "target", pid);
	return stall_answer(server, &json);
}

struct stall_error *stall_answer_event(struct stall_server *server,
				       const struct stall_watch_event *event)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "event");
	stall_json_key(&json, "event");
	stall_json_open(&json, '{');
	stall_watch_event_write(event, &json);
	stall_json_close(&json, '}');
	return end(server, &json);
}

static void member_trigger(struct stall_json *json, const struct stall_trigger *trigger)
{
	static const struct stall_locks no_locks;

	stall_json_key(json, "trigger");
	stall_json_open(json, '{');
	stall_trigger_write(trigger, &no_locks, json);
	stall_json_close(json, '}');
}

struct stall_error *stall_answer_captured(struct stall_server *server, const char *path,
					  bool partial, const struct stall_trigger *trigger)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "captured");
	stall_json_member_string(&json, "path", path);
	stall_json_member_bool(&json, "partial", partial);
	member_trigger(&json, trigger);
	return end(server, &json);
}

struct stall_error *stall_answer_not_captured(struct stall_server *server, const char *message,
					      const struct stall_trigger *trigger)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "not-captured");
	stall_json_member_string(&json, "message", message);
	member_trigger(&json, trigger);
	return end(server, &json);
}

struct stall_error *stall_answer_failed(struct stall_server *server, struct stall_error *failed)
{
	struct stall_error *err = stall_answer_error(server, failed->message);

	if (!err && failed->code == STALL_ERROR_NO_PROCESS && !server->options->follow)
		return failed;
	stall_error_destroy(failed);
	return err;
}

struct stall_error *stall_answer_refused(struct stall_server *server, struct stall_error *failed)
{
	struct stall_error *err = stall_answer_error(server, failed->message);

	stall_error_destroy(failed);
	return err;
}

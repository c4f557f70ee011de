// SPDX-License-Identifier: Apache-2.0
#include "command/waits_command.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/messages.h"
#include "base/options_text.h"
#include "base/output.h"
#include "base/pace.h"
#include "base/signals.h"
#include "watch/watch_events.h"
#include "watch/watch_ignored.h"
#include "watch/watch_processes.h"

#define MAX_LINE 256

struct command {
	const struct stall_waits_options *options;
	struct stall_watch *watch;
	struct stall_output *output;
	int in;	     // -1: it has ended
	int signals; // signalfd
	struct stall_pace pace;
	size_t alive;
	bool over;
	char text[MAX_LINE];
	struct stall_command_lines lines; // in `text`
};

void stall_waits_options_init(struct stall_waits_options *options)
{
	*options = (struct stall_waits_options){.interval_ns = UINT64_C(1000000000)};
}

static struct stall_error *write_line(struct command *command, bool final)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};
	struct stall_error *err = stall_watch_write(command->watch, final, &json);

	return err ? err : stall_message_write(&json, command->output);
}

static struct stall_error *answer_error(void *arg, const char *message)
{
	struct command *command = arg;
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_text(&json, "error", message);
	return stall_message_write(&json, command->output);
}

static struct stall_error *answer_ready(struct command *command)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_begin(&json, "ready");
	stall_json_close(&json, '}');
	return stall_message_write(&json, command->output);
}

static struct stall_error *answer_pid(struct command *command, const char *type, pid_t pid)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_pid(&json, type, pid);
	return stall_message_write(&json, command->output);
}

static struct stall_error *answer_threshold(struct command *command, const char *kind, uint64_t ns)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_threshold(&json, "threshold", kind, ns);
	return stall_message_write(&json, command->output);
}

// A command that fails gets an answer; only an error of the program itself is returned.
static struct stall_error *report_failure(struct command *command, struct stall_error *failed)
{
	if (!failed || failed->code == STALL_ERROR_NO_MEMORY)
		return failed;
	struct stall_error *err = answer_error(command, failed->message);
	stall_error_destroy(failed);
	return err;
}

static struct stall_error *run_target(struct command *command, const char *text)
{
	uint64_t pid = 0;
	struct stall_error *err = stall_parse_number("target", text, 1, INT_MAX, &pid);

	if (!err)
		err = stall_watch_add(command->watch, pid);
	if (err)
		return report_failure(command, err);
	command->alive = stall_watch_alive(command->watch);
	return answer_pid(command, "target", pid);
}

static struct stall_error *run_threshold(struct command *command, char *text)
{
	char *space = strchr(text, ' ');
	uint64_t ns = 0;

	if (!space)
		return answer_error(command, "say threshold KIND MS");
	*space = '\0';
	struct stall_error *err = stall_parse_ms("threshold", space + 1, &ns);
	if (!err)
		err = stall_watch_set_threshold(command->watch, text, ns);
	return err ? report_failure(command, err) : answer_threshold(command, text, ns);
}

static struct stall_error *answer_thread(struct command *command, const char *type,
					 const struct stall_ignored_name *name)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_message_thread(&json, type, name->pid, name->tid);
	return stall_message_write(&json, command->output);
}

static struct stall_error *answer_not_ignored(struct command *command, struct stall_error *failed)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	if (failed->code == STALL_ERROR_NO_MEMORY)
		return failed;
	stall_message_text(&json, "not-ignored", failed->message);
	stall_error_destroy(failed);
	return stall_message_write(&json, command->output);
}

static struct stall_error *run_ignore(struct command *command, const char *text)
{
	struct stall_ignored_name name;
	struct stall_error *err = stall_ignored_name_parse(text, &name);

	if (err)
		return report_failure(command, err);
	err = stall_watch_check_pid(command->watch, name.pid);
	if (!err)
		err = stall_ignored_name_resolve(&name);
	if (!err)
		err = stall_watch_ignore(command->watch, name.pid, name.tid, true);
	return err ? answer_not_ignored(command, err) : answer_thread(command, "ignored", &name);
}

static struct stall_error *run_heed(struct command *command, const char *text)
{
	struct stall_ignored_name name;
	struct stall_error *err = stall_heeded_name_parse(text, &name);

	if (err)
		return report_failure(command, err);
	stall_error_destroy(stall_watch_ignore(command->watch, name.pid, name.tid, false));
	return answer_thread(command, "heeded", &name);
}

static struct stall_error *run_line(void *arg, char *line)
{
	struct command *command = arg;

	if (!strncmp(line, "target ", 7))
		return run_target(command, line + 7);
	if (!strncmp(line, "threshold ", 10))
		return run_threshold(command, line + 10);
	if (!strncmp(line, "ignore ", 7))
		return run_ignore(command, line + 7);
	if (!strncmp(line, "heed ", 5))
		return run_heed(command, line + 5);
	if (!strcmp(line, "quit")) {
		command->over = true;
		return NULL;
	}
	return answer_error(command,
			    "unknown command; say target PID, threshold KIND MS, "
			    "ignore PID TID, ignore PID socket:INODE, heed PID TID or quit");
}

// With a duration the end of input does not end the program: a service has no input.
static struct stall_error *read_input(struct command *command)
{
	struct stall_command_lines *lines = &command->lines;
	const struct stall_command_handler handler = {
		.arg = command,
		.over = &command->over,
		.too_long = "command longer than any that there is",
		.run = run_line,
		.refuse = answer_error,
	};
	ssize_t got = read(command->in, lines->text + lines->used, lines->size - lines->used);

	if (got < 0 && (errno == EINTR || errno == EAGAIN))
		return NULL;
	if (got < 0)
		return stall_error_os(errno, "cannot read commands from standard input");
	if (got == 0) {
		command->in = -1;
		command->over |= !stall_pace_ends(&command->pace);
		return NULL;
	}
	return stall_command_lines_take(lines, got, &handler);
}

static int timeout_ms(const struct command *command)
{
	int ms = stall_pace_timeout_ms(&command->pace);
	int watch_ms = stall_watch_timeout_ms(command->watch);

	return watch_ms >= 0 && (ms < 0 || watch_ms < ms) ? watch_ms : ms;
}

static struct stall_error *report_ends(struct command *command)
{
	struct stall_error *err = NULL;
	pid_t pid;

	while (!err && (pid = stall_watch_take_ended(command->watch)))
		err = answer_pid(command, "ended", pid);
	command->alive = stall_watch_alive(command->watch);
	if (!command->alive && !command->options->follow)
		command->over = true;
	return err;
}

static struct stall_error *tick(struct command *command)
{
	command->over |= stall_pace_is_over(&command->pace);
	if (command->over || !stall_pace_take(&command->pace))
		return NULL;
	return write_line(command, false);
}

static struct stall_error *wait_and_do(struct command *command)
{
	struct pollfd fds[] = {
		{.fd = command->in, .events = POLLIN},
		{.fd = command->signals, .events = POLLIN},
		{.fd = stall_watch_fd(command->watch), .events = POLLIN},
	};
	int ready = poll(fds, 3, timeout_ms(command));

	if (ready < 0)
		return errno == EINTR ? NULL : stall_error_os(errno, "poll");
	struct stall_error *err = stall_watch_dispatch(command->watch);
	if (!err)
		err = report_ends(command);
	if (!err && fds[0].revents)
		err = read_input(command);
	if (fds[1].revents)
		command->over = true;
	return err ? err : tick(command);
}

static void command_deinit(struct command *command)
{
	stall_watch_destroy(command->watch);
	stall_output_destroy(command->output);
	if (command->signals >= 0)
		close(command->signals);
}

struct stall_error *stall_waits_run(const struct stall_watch_options *watch,
				    const struct stall_waits_options *options, const pid_t *pids,
				    size_t pid_count, int in, int out)
{
	_cleanup_(command_deinit) struct command command = {
		.options = options,
		.in = in,
		.signals = -1,
	};
	command.lines = (struct stall_command_lines){.text = command.text, .size = MAX_LINE};
	struct stall_error *err = stall_signals_block(&command.signals);

	if (!err)
		err = stall_output_create_fd(out, &command.output);
	if (!err)
		err = stall_watch_create(watch, pids, pid_count, NULL, NULL, &command.watch);
	if (!err)
		err = answer_ready(&command);
	if (err)
		return err;
	stall_pace_init(&command.pace, options->interval_ns, options->duration_ns);
	while (!err && !command.over)
		err = wait_and_do(&command);
	if (!err)
		err = stall_watch_dispatch_last(command.watch);
	if (!err)
		err = write_line(&command, true);
	return err;
}

// SPDX-License-Identifier: Apache-2.0
#include "command/storage_command.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/output.h"
#include "base/pace.h"
#include "base/signals.h"
#include "storage/storage.h"

struct command {
	const struct stall_storage_options *options;
	struct stall_storage *storage;
	struct stall_output *output;
	int in;	     // -1: it has ended
	int signals; // signalfd
	struct stall_pace pace;
	bool over;
};

static struct stall_error *put(struct command *command, const struct stall_json *json)
{
	if (json->failed)
		return &stall_enomem;
	return json->size ? stall_output_write(command->output, json->data, json->size) : NULL;
}

static struct stall_error *write_lines(struct command *command, bool final)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_json_init(&json);
	struct stall_error *err = stall_storage_write(command->storage, final, &json);
	return err ? err : put(command, &json);
}

static struct stall_error *write_ended(struct command *command)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_json_init(&json);
	struct stall_error *err = stall_storage_write_ended(command->storage, &json);
	if (!stall_storage_alive(command->storage))
		command->over = true;
	return err ? err : put(command, &json);
}

static struct stall_error *tick(struct command *command)
{
	command->over |= stall_pace_is_over(&command->pace);
	if (command->over || !stall_pace_take(&command->pace))
		return NULL;
	return write_lines(command, false);
}

// The only command is "quit".
static struct stall_error *read_input(struct command *command)
{
	char text[256];
	ssize_t got = read(command->in, text, sizeof(text) - 1);

	if (got < 0 && (errno == EINTR || errno == EAGAIN))
		return NULL;
	if (got < 0)
		return stall_error_os(errno, "cannot read commands from standard input");
	if (got == 0) {
		command->in = -1;
		command->over |= !stall_pace_ends(&command->pace);
		return NULL;
	}
	text[got] = '\0';
	command->over |= !strcmp(text, "quit\n");
	return NULL;
}

static struct stall_error *wait_and_do(struct command *command)
{
	struct pollfd fds[] = {
		{.fd = command->in, .events = POLLIN},
		{.fd = command->signals, .events = POLLIN},
		{.fd = stall_storage_fd(command->storage), .events = POLLIN},
	};
	int ready = poll(fds, 3, stall_pace_timeout_ms(&command->pace));

	if (ready < 0)
		return errno == EINTR ? NULL : stall_error_os(errno, "poll");
	struct stall_error *err = stall_storage_dispatch(command->storage);
	if (!err)
		err = write_ended(command);
	if (!err && fds[0].revents)
		err = read_input(command);
	if (fds[1].revents)
		command->over = true;
	return err ? err : tick(command);
}

static void command_deinit(struct command *command)
{
	stall_storage_destroy(command->storage);
	stall_output_destroy(command->output);
	if (command->signals >= 0)
		close(command->signals);
}

struct stall_error *stall_storage_run(const struct stall_storage_options *options,
				      const pid_t *pids, size_t pid_count, int in, int out)
{
	_cleanup_(command_deinit) struct command command = {
		.options = options,
		.in = in,
		.signals = -1,
	};
	struct stall_error *err = stall_signals_block(&command.signals);

	if (!err)
		err = stall_output_create_fd(out, &command.output);
	if (!err)
		err = stall_storage_create(pids, pid_count, &command.storage);
	if (err)
		return err;
	stall_pace_init(&command.pace, options->interval_ns, options->duration_ns);
	// A reader that compares the totals with other counters reads these now.
	err = write_lines(&command, false);
	while (!err && !command.over)
		err = wait_and_do(&command);
	return err ? err : write_lines(&command, true);
}

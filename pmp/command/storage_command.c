// SPDX-License-Identifier: Apache-2.0
#include "command/storage_command.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/output.h"
#include "base/signals.h"
#include "storage/storage.h"

struct command {
	const struct stall_storage_options *options;
	struct stall_storage *storage;
	struct stall_output *output;
	int in;			  // -1: it has ended
	int signals;		  // signalfd
	uint64_t next_ns, end_ns; // CLOCK_MONOTONIC; UINT64_MAX: never
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
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (now_ns >= command->end_ns)
		command->over = true;
	if (command->over || now_ns < command->next_ns)
		return NULL;
	// Missed lines are not written later.
	command->next_ns += command->options->interval_ns;
	if (command->next_ns <= now_ns)
		command->next_ns = now_ns + command->options->interval_ns;
	return write_lines(command, false);
}

static int timeout_ms(const struct command *command)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t until_ns = command->next_ns < command->end_ns ? command->next_ns : command->end_ns;

	if (until_ns == UINT64_MAX)
		return -1;
	if (until_ns <= now_ns)
		return 0;
	uint64_t ms = (until_ns - now_ns) / 1000000 + 1;
	return ms < INT_MAX ? (int)ms : INT_MAX;
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
		command->over |= command->end_ns == UINT64_MAX;
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
	int ready = poll(fds, 3, timeout_ms(command));

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
		.next_ns = UINT64_MAX,
		.end_ns = UINT64_MAX,
	};
	struct stall_error *err = stall_signals_block(&command.signals);

	if (!err)
		err = stall_output_create_fd(out, &command.output);
	if (!err)
		err = stall_storage_create(pids, pid_count, &command.storage);
	if (err)
		return err;
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	if (options->interval_ns)
		command.next_ns = now_ns + options->interval_ns;
	if (options->duration_ns)
		command.end_ns = now_ns + options->duration_ns;
	// A reader that compares the totals with other counters reads these now.
	err = write_lines(&command, false);
	while (!err && !command.over)
		err = wait_and_do(&command);
	return err ? err : write_lines(&command, true);
}

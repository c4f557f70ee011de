// SPDX-License-Identifier: Apache-2.0
#include "serve/commands.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/options_text.h"
#include "ebpf/wait_kinds.h"
#include "serve/answers.h"
#include "serve/captures.h"
#include "serve/targets.h"
#include "serve/watching.h"

static struct stall_error *run_snap(struct stall_server *server, const char *path)
{
	return stall_captures_snap(server, *path ? path : NULL);
}

static struct stall_error *run_watch(struct stall_server *server, const char *state)
{
	struct stall_error *failed = NULL;

	if (!strcmp(state, "on"))
		failed = stall_watching_on(server);
	else if (!strcmp(state, "off"))
		stall_watching_off(server);
	else
		return stall_answer_error(server, "say watch on, or watch off");
	return failed ? stall_answer_refused(server, failed) : stall_answer_watch(server);
}

typedef struct stall_error *(*set_threshold_fn)(struct stall_server *server, uint32_t kinds,
						uint64_t ns);

// "KIND MS"
static struct stall_error *set_threshold(struct stall_server *server, const char *command,
					 const char *text, set_threshold_fn set)
{
	char kind[32] = "";
	size_t length = strcspn(text, " ");
	uint64_t ns = 0;

	if (length < sizeof(kind) && text[length])
		memcpy(kind, text, length);
	uint32_t kinds = stall_watch_kinds_parse(kind);
	if (!kinds)
		return stall_answer_error(server, "a kind of wait (or a group: lock, sync, space, "
						  "io, all) and milliseconds are wanted");
	struct stall_error *failed = stall_parse_ms(command, text + length + 1, &ns);
	if (!failed)
		failed = set(server, kinds, ns);
	if (failed)
		return stall_answer_refused(server, failed);
	return stall_answer_threshold(server, command, kind, ns);
}

static struct stall_error *run_threshold(struct stall_server *server, const char *text)
{
	return set_threshold(server, "threshold", text, stall_watching_set_threshold);
}

static struct stall_error *run_capture_threshold(struct stall_server *server, const char *text)
{
	return set_threshold(server, "capture-threshold", text,
			     stall_watching_set_capture_threshold);
}

static struct stall_error *run_target(struct stall_server *server, const char *text)
{
	uint64_t pid = 0;
	struct stall_error *failed = stall_parse_number("target", text, 1, INT_MAX, &pid);

	if (!failed)
		failed = stall_captures_end_burst(server);
	if (!failed)
		failed = stall_targets_take_up(server, pid);
	return failed ? stall_answer_refused(server, failed) : stall_answer_target(server, pid);
}

static struct stall_error *ignore(struct stall_server *server, struct stall_ignored_name *name)
{
	struct stall_error *err = stall_targets_check_pid(server, name->pid);

	if (!err)
		err = stall_ignored_name_resolve(name);
	if (!err)
		err = stall_own_threads_add(&server->own, name->pid, name->tid);
	if (err || !server->watch)
		return err;
	err = stall_watch_ignore(server->watch, name->pid, name->tid, true);
	if (err)
		stall_own_threads_remove(&server->own, name->pid, name->tid);
	return err;
}

static struct stall_error *run_ignore(struct stall_server *server, const char *text)
{
	struct stall_ignored_name name;
	struct stall_error *failed = stall_ignored_name_parse(text, &name);

	if (failed)
		return stall_answer_refused(server, failed);
	failed = ignore(server, &name);
	return failed ? stall_answer_not_ignored(server, failed)
		      : stall_answer_thread(server, "ignored", name.pid, name.tid);
}

// A thread that is not ignored is heeded already, also that of a process that has ended.
static struct stall_error *run_heed(struct stall_server *server, const char *text)
{
	struct stall_ignored_name name;
	struct stall_error *failed = stall_heeded_name_parse(text, &name);

	if (failed)
		return stall_answer_refused(server, failed);
	stall_own_threads_remove(&server->own, name.pid, name.tid);
	if (server->watch)
		stall_error_destroy(stall_watch_ignore(server->watch, name.pid, name.tid, false));
	return stall_answer_thread(server, "heeded", name.pid, name.tid);
}

// "-" forgets all that was said; anything else is added.
static struct stall_error *run_layout(struct stall_server *server, const char *text)
{
	struct stall_error *failed = stall_captures_end_burst(server);

	if (!failed && !strcmp(text, "-"))
		stall_layout_deinit(&server->layout);
	else if (!failed)
		failed = stall_layout_add(&server->layout, text);
	if (failed)
		return stall_answer_refused(server, failed);
	stall_capturer_set_layout(server->capturer, &server->layout);
	return stall_answer_layout(server);
}

static struct stall_error *run_waits(struct stall_server *server, const char *rest)
{
	struct stall_error *failed;

	if (!server->watch)
		return stall_answer_error(server, "no wait is watched; say watch on");
	failed = stall_watching_write(server, false);
	return failed ? stall_answer_refused(server, failed) : NULL;
}

static const struct {
	const char *name;
	enum { NOTHING, ANYTHING, SOMETHING } operand;
	struct stall_error *(*run)(struct stall_server *server, const char *operand);
} known_commands[] = {
	{"snap", ANYTHING, run_snap},
	{"burst", SOMETHING, stall_captures_burst},
	{"watch", SOMETHING, run_watch},
	{"threshold", SOMETHING, run_threshold},
	{"capture-threshold", SOMETHING, run_capture_threshold},
	{"target", SOMETHING, run_target},
	{"ignore", SOMETHING, run_ignore},
	{"heed", SOMETHING, run_heed},
	{"layout", SOMETHING, run_layout},
	{"waits", NOTHING, run_waits},
};

// The arguments of a line's command.
struct running {
	struct stall_commands *commands;
	struct stall_server *server;
};

static struct stall_error *run_line(void *arg, char *line)
{
	const struct running *running = arg;
	struct stall_server *server = running->server;
	size_t length = strcspn(line, " ");
	const char *operand = line + length + (line[length] == ' ');

	if (!strcmp(line, "quit")) {
		running->commands->quit = true;
		return NULL;
	}
	for (size_t i = 0; i < sizeof(known_commands) / sizeof(known_commands[0]); i++) {
		if (strlen(known_commands[i].name) != length ||
		    strncmp(known_commands[i].name, line, length))
			continue;
		if (known_commands[i].operand == NOTHING ? line[length] : line[length] && !*operand)
			break;
		if (known_commands[i].operand == SOMETHING && !*operand)
			break;
		return known_commands[i].run(server, operand);
	}
	return stall_answer_error(
		server, "unknown command; say snap, snap FILE, burst FILE, watch on, watch off, "
			"threshold KIND MS, capture-threshold KIND MS, target PID, "
			"ignore PID TID, ignore PID socket:INODE, heed PID TID, "
			"layout KEY=NUMBER ..., layout -, waits or quit");
}

static struct stall_error *refuse(void *arg, const char *message)
{
	struct running *running = arg;

	return stall_answer_error(running->server, message);
}

void stall_commands_init(struct stall_commands *commands)
{
	*commands = (struct stall_commands){};
	commands->lines.text = commands->text;
	commands->lines.size = sizeof(commands->text);
}

struct stall_error *stall_commands_run(struct stall_commands *commands, struct stall_server *server,
				       int in)
{
	struct stall_command_lines *lines = &commands->lines;
	struct running running = {commands, server};
	const struct stall_command_handler handler = {
		.arg = &running,
		.over = &commands->quit,
		.too_long = "command longer than a path may be",
		.run = run_line,
		.refuse = refuse,
	};
	ssize_t got;

	do {
		got = read(in, lines->text + lines->used, lines->size - lines->used);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return stall_error_os(errno, "cannot read commands from standard input");
	commands->ended = got == 0;
	return stall_command_lines_take(lines, got, &handler);
}

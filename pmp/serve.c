// SPDX-License-Identifier: Apache-2.0
#include "serve.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "json_writer.h"
#include "target.h"

// "snap " and a path.
#define MAX_LINE (PATH_MAX + 16)

struct server {
	struct stall_probe *probe;
	struct stall_target *targets; // to learn of their end while nothing is asked for
	size_t target_count;
	bool force_overwrite;
	int in, out;
	char line[MAX_LINE];
	size_t used;
	bool skip; // the rest of a line that is too long
};

static struct stall_error *answer(struct server *server, struct stall_json *json)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;

	stall_json_newline(json);
	if (json->failed)
		return &stall_enomem;
	struct stall_error *err = stall_output_create_fd(server->out, &output);
	return err ? err : stall_output_write(output, json->data, json->size);
}

static struct stall_error *answer_ready(struct server *server)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};

	stall_json_open(&json, '{');
	stall_json_member_string(&json, "type", "ready");
	stall_json_close(&json, '}');
	return answer(server, &json);
}

static struct stall_error *answer_error(struct server *server, const char *message)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};

	stall_json_open(&json, '{');
	stall_json_member_string(&json, "type", "error");
	stall_json_member_string(&json, "message", message);
	stall_json_close(&json, '}');
	return answer(server, &json);
}

static struct stall_error *answer_written(struct server *server, const char *path, bool partial)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};

	stall_json_open(&json, '{');
	stall_json_member_string(&json, "type", "written");
	stall_json_member_string(&json, "path", path);
	stall_json_member_bool(&json, "partial", partial);
	stall_json_close(&json, '}');
	return answer(server, &json);
}

static struct stall_error *snap(struct server *server, const char *path, bool *ret_partial)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_error *err;

	if (path)
		err = stall_output_create(path, server->force_overwrite, &output);
	else
		err = stall_output_create_fd(server->out, &output);
	if (!err)
		err = stall_probe_capture(server->probe, output, ret_partial);
	return err ? err : stall_output_commit(output);
}

// The target's end is the end of all; anything else is only this command's.
static struct stall_error *tell(struct server *server, struct stall_error *failed)
{
	struct stall_error *err = answer_error(server, failed->message);

	if (!err && failed->code == STALL_ERROR_NO_PROCESS)
		return failed;
	stall_error_destroy(failed);
	return err;
}

static struct stall_error *run_snap(struct server *server, const char *path)
{
	bool partial;
	struct stall_error *failed = snap(server, path, &partial);

	if (failed)
		return tell(server, failed);
	return path ? answer_written(server, path, partial) : NULL;
}

static struct stall_error *run_line(struct server *server, const char *line, bool *ret_quit)
{
	if (!strcmp(line, "snap"))
		return run_snap(server, NULL);
	if (!strncmp(line, "snap ", 5) && line[5])
		return run_snap(server, line + 5);
	if (!strcmp(line, "quit")) {
		*ret_quit = true;
		return NULL;
	}
	return answer_error(server, "unknown command; say snap, snap FILE or quit");
}

static struct stall_error *take_lines(struct server *server, bool *ret_quit)
{
	char *newline;

	while (!*ret_quit && (newline = memchr(server->line, '\n', server->used))) {
		size_t length = newline + 1 - server->line;
		struct stall_error *err = NULL;

		*newline = '\0';
		if (server->skip)
			server->skip = false;
		else if (memchr(server->line, '\0', length - 1))
			err = answer_error(server, "command with a NUL byte");
		else
			err = run_line(server, server->line, ret_quit);
		memmove(server->line, newline + 1, server->used - length);
		server->used -= length;
		if (err)
			return err;
	}
	if (server->used < sizeof(server->line))
		return NULL;
	server->used = 0;
	if (server->skip)
		return NULL;
	server->skip = true;
	return answer_error(server, "command longer than a path may be");
}

// One process of several may end (a connection of PostgreSQL's); the last one ends it all.
static struct stall_error *check_targets(struct server *server, size_t *ret_left)
{
	struct stall_error *last = NULL;
	size_t left = 0;

	for (size_t i = 0; i < server->target_count; i++) {
		struct stall_error *err = stall_target_check(&server->targets[i]);
		left += !err;
		if (!err)
			continue;
		stall_error_destroy(last);
		last = err;
	}
	*ret_left = left;
	if (left) {
		stall_error_destroy(last);
		return NULL;
	}
	return tell(server, last);
}

// Until a line is there, or the last target has ended.
static struct stall_error *wait_for_input(struct server *server)
{
	_cleanup_free_ struct pollfd *fds = calloc(server->target_count + 1, sizeof(*fds));
	size_t left;

	if (!fds)
		return &stall_enomem;
	for (size_t i = 0; i < server->target_count; i++)
		fds[i] = (struct pollfd){.fd = server->targets[i].pidfd, .events = POLLIN};
	fds[server->target_count] = (struct pollfd){.fd = server->in, .events = POLLIN};
	for (;;) {
		int ready = poll(fds, server->target_count + 1, -1);
		if (ready < 0 && errno == EINTR)
			continue;
		if (ready < 0)
			return stall_error_os(errno, "poll");
		if (fds[server->target_count].revents)
			return NULL;
		struct stall_error *err = check_targets(server, &left);
		if (err)
			return err;
		for (size_t i = 0; i < server->target_count; i++)
			if (fds[i].revents)
				fds[i].fd = -1;
	}
}

static struct stall_error *serve(struct server *server)
{
	bool quit = false;
	struct stall_error *err = answer_ready(server);

	while (!err && !quit) {
		err = wait_for_input(server);
		if (err)
			break;
		ssize_t got = read(server->in, server->line + server->used,
				   sizeof(server->line) - server->used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return stall_error_os(errno, "cannot read commands from standard input");
		if (got == 0)
			break;
		server->used += got;
		err = take_lines(server, &quit);
	}
	return err;
}

static void server_deinit(struct server *server)
{
	for (size_t i = 0; i < server->target_count; i++)
		stall_target_deinit(&server->targets[i]);
	free(server->targets);
}

struct stall_error *stall_serve(const struct stall_probe_options *options, bool force_overwrite,
				int in, int out)
{
	_cleanup_(stall_probe_destroyp) struct stall_probe *probe = NULL;
	_cleanup_(server_deinit) struct server server = {
		.force_overwrite = force_overwrite,
		.in = in,
		.out = out,
	};
	struct stall_error *err;

	server.targets = calloc(options->pid_count, sizeof(*server.targets));
	if (!server.targets)
		return &stall_enomem;
	for (size_t i = 0; i < options->pid_count; i++) {
		err = stall_target_init(&server.targets[i], options->pids[i]);
		if (err)
			return err;
		server.target_count++;
	}
	err = stall_probe_create(options, &probe);
	if (err)
		return err;
	server.probe = probe;
	err = stall_probe_warm(probe);
	return err ? err : serve(&server);
}

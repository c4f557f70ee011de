// SPDX-License-Identifier: Apache-2.0
#include "serve/targets.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "serve/answers.h"
#include "watch/watch.h"
#include "watch/watch_processes.h"

static struct stall_error *add(struct stall_server *server, pid_t pid)
{
	if (!stall_array_resize(&server->targets, server->target_count + 1))
		return &stall_enomem;
	struct stall_error *err = stall_target_init(&server->targets[server->target_count], pid);
	if (!err)
		server->target_count++;
	return err;
}

// Of several processes, those that have ended are left out: a server's connections come and go.
struct stall_error *stall_targets_init(struct stall_server *server, const pid_t *pids, size_t count)
{
	_cleanup_error_ struct stall_error *ended = NULL;

	for (size_t i = 0; i < count; i++) {
		struct stall_error *err = add(server, pids[i]);
		if (err && err->code != STALL_ERROR_NO_PROCESS)
			return err;
		if (!err)
			continue;
		stall_error_destroy(ended);
		ended = err;
	}
	return server->target_count ? NULL : no_cleanup_ptr(ended);
}

void stall_targets_deinit(struct stall_server *server)
{
	for (size_t i = 0; i < server->target_count; i++)
		stall_target_deinit(&server->targets[i]);
	free(server->targets);
}

// Removes the targets that have ended; *ret_last is the error of the last of them.
static void drop_ended(struct stall_server *server, struct stall_error **ret_last)
{
	size_t left = 0;

	for (size_t i = 0; i < server->target_count; i++) {
		struct stall_target *target = &server->targets[i];
		struct stall_error *ended = stall_target_check(target);
		if (!ended) {
			server->targets[left++] = *target;
			continue;
		}
		stall_own_threads_drop(&server->own, target->pid);
		stall_target_deinit(target);
		stall_error_destroy(*ret_last);
		*ret_last = ended;
	}
	server->target_count = left;
}

struct stall_error *stall_targets_check_pid(const struct stall_server *server, pid_t pid)
{
	for (size_t i = 0; i < server->target_count; i++)
		if (server->targets[i].pid == pid)
			return NULL;
	return stall_error_create(STALL_ERROR_USAGE, "process %d is none of those that are served",
				  pid);
}

static struct stall_error *update_capturer(struct stall_server *server)
{
	_cleanup_free_ pid_t *pids = calloc(server->target_count + 1, sizeof(*pids));

	if (!pids)
		return &stall_enomem;
	for (size_t i = 0; i < server->target_count; i++)
		pids[i] = server->targets[i].pid;
	return stall_capturer_set_targets(server->capturer, pids, server->target_count);
}

struct stall_error *stall_targets_take_up(struct stall_server *server, pid_t pid)
{
	_cleanup_error_ struct stall_error *ended = NULL;
	struct stall_error *err;

	drop_ended(server, &ended);
	for (size_t i = 0; i < server->target_count; i++)
		if (server->targets[i].pid == pid)
			return NULL;
	err = add(server, pid);
	if (!err)
		err = update_capturer(server);
	if (!err && server->watch)
		err = stall_watch_add(server->watch, pid);
	if (err)
		return err;
	err = stall_capturer_warm(server->capturer);
	// The first capture fills the caches, and notes what cannot be read.
	if (err && (err->code == STALL_ERROR_AGAIN || err->code == STALL_ERROR_UNSUPPORTED)) {
		stall_error_destroy(err);
		err = NULL;
	}
	return err;
}

void stall_targets_poll(const struct stall_server *server, struct pollfd *fds)
{
	for (size_t i = 0; i < server->target_count; i++)
		fds[i] = (struct pollfd){.fd = server->targets[i].pidfd, .events = POLLIN};
}

struct stall_error *stall_targets_check(struct stall_server *server)
{
	_cleanup_error_ struct stall_error *ended = NULL;
	struct stall_error *err;

	drop_ended(server, &ended);
	if (!ended)
		return NULL;
	err = update_capturer(server);
	if (err || server->target_count)
		return err;
	if (!server->options->follow)
		return stall_answer_failed(server, no_cleanup_ptr(ended));
	return stall_answer_ended(server, ended->message);
}

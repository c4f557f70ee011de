// SPDX-License-Identifier: Apache-2.0
#include "serve/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/cleanup.h"
#include "serve/answers.h"
#include "serve/captures.h"
#include "serve/commands.h"
#include "serve/targets.h"
#include "serve/watching.h"

void stall_serve_options_init(struct stall_serve_options *options)
{
	*options = (struct stall_serve_options){.line_ns = 0};
	stall_trigger_rules_init(&options->rules);
}

#define PIPE_BYTES (1 << 20)	   // all that any user may have, by /proc/sys/fs/pipe-max-size
#define TRIM_THRESHOLD (128 << 10) // as it begins, mallopt(3)

enum { INPUT, SIGNALS, WATCH, TARGETS }; // of the descriptors that are polled

// Until there is something to do.
static struct stall_error *wait_for_work(struct stall_server *server, int in, int signals,
					 struct pollfd *fds)
{
	fds[INPUT] = (struct pollfd){.fd = in, .events = POLLIN};
	fds[SIGNALS] = (struct pollfd){.fd = signals, .events = POLLIN};
	fds[WATCH] = (struct pollfd){.fd = server->watch ? stall_watch_fd(server->watch) : -1,
				     .events = POLLIN};
	stall_targets_poll(server, fds + TARGETS);
	while (poll(fds, TARGETS + server->target_count,
		    stall_captures_sooner_ms(server, stall_watching_next_ms(server))) < 0)
		if (errno != EINTR)
			return stall_error_os(errno, "poll");
	return NULL;
}

static bool has_ended(const struct stall_server *server, const struct pollfd *fds)
{
	for (size_t i = 0; i < server->target_count; i++)
		if (fds[TARGETS + i].revents)
			return true;
	return false;
}

// SIGTERM acts as "quit": the thresholds of a ring are restored.
static struct stall_error *receive_sigterm(int *ret)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return stall_error_os(errno, "sigprocmask");
	*ret = signalfd(-1, &set, SFD_CLOEXEC);
	return *ret < 0 ? stall_error_os(errno, "signalfd") : NULL;
}

static struct stall_error *run(struct stall_server *server, struct stall_commands *commands, int in,
			       int signals)
{
	while (!commands->quit && !commands->ended) {
		_cleanup_free_ struct pollfd *fds =
			calloc(TARGETS + server->target_count, sizeof(*fds));
		if (!fds)
			return &stall_enomem;
		struct stall_error *err = wait_for_work(server, in, signals, fds);
		// Waits first: they are urgent.
		if (!err)
			err = stall_watching_run(server);
		if (!err)
			err = stall_captures_run(server);
		if (!err && has_ended(server, fds))
			err = stall_targets_check(server);
		if (fds[SIGNALS].revents)
			commands->quit = true;
		if (!err && fds[INPUT].revents)
			err = stall_commands_run(commands, server, in);
		if (err)
			return err;
	}
	return stall_captures_end_burst(server);
}

static struct stall_error *start(struct stall_server *server,
				 const struct stall_capturer_options *capture, int *ret_signals)
{
	struct stall_error *err = stall_targets_init(server, capture->pids, capture->pid_count);

	// glibc learns from each large block that is freed to take the next one from the heap,
	// which then permanently keeps what loading BPF needs for a moment. A fixed threshold
	// prevents that.
	mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD);
	// Room for a burst of events, so that writing them does not delay the next poll. Has no
	// effect where it is no pipe.
	fcntl(STDOUT_FILENO, F_SETPIPE_SZ, PIPE_BYTES);
	if (!err)
		err = stall_triggers_init(&server->triggers, &server->options->rules);
	if (!err)
		err = stall_capturer_create(capture, &server->capturer);
	if (!err)
		stall_capturer_set_own(server->capturer, &server->own);
	if (!err)
		err = stall_capturer_warm(server->capturer);
	// The first capture fills the caches.
	if (err && err->code == STALL_ERROR_AGAIN) {
		stall_error_destroy(err);
		err = NULL;
	}
	if (!err && server->options->watch)
		err = stall_watching_on(server);
	if (!err)
		err = receive_sigterm(ret_signals);
	return err ? err : stall_answer_ready(server);
}

static void server_deinit(struct stall_server *server)
{
	stall_watching_off(server);
	stall_captures_deinit(server);
	stall_capturer_destroy(server->capturer);
	stall_layout_deinit(&server->layout);
	stall_triggers_deinit(&server->triggers);
	stall_targets_deinit(server);
}

struct stall_error *stall_serve(const struct stall_serve_options *options,
				const struct stall_capturer_options *capture,
				const struct stall_watch_options *watch, int in, int out)
{
	struct stall_commands commands;
	_cleanup_close_ int signals = -1;
	_cleanup_(server_deinit) struct stall_server server = {
		.options = options,
		.watch_options = *watch,
		.out = out,
	};

	stall_commands_init(&commands);
	memcpy(server.asked_ns, watch->source.threshold_ns, sizeof(server.asked_ns));
	// Events are lines of their own here.
	server.watch_options.events = false;
	struct stall_error *err = start(&server, capture, &signals);
	if (!err)
		err = run(&server, &commands, in, signals);
	if (!server.watch || !options->line_ns || (err && err->code != STALL_ERROR_NO_PROCESS))
		return err;
	// Totals of the run, where lines were asked for.
	struct stall_error *failed = stall_watching_write(&server, true);
	if (!err)
		return failed;
	stall_error_destroy(failed);
	return err;
}

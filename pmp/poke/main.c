// SPDX-License-Identifier: Apache-2.0
// stallscope-poke, the one program that writes to other processes. It is apart from stallscope-probe,
// which packages install with capabilities: who may run that can read with it, and no more.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/privileges.h"
#include "poke/poke_command.h"
#include "poke/poke_options.h"

#define NAME "stallscope-poke"
#define KILL_MS 1000 // for a child that can be killed

enum exit_status {
	EXIT_DONE = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
};

// Its rights must be those of who runs it, or the packages' modes would decide who writes to servers.
static struct stall_error *check_rights(void)
{
	if (!stall_has_rights_of_file())
		return NULL;
	return stall_error_create(
		STALL_ERROR_PERMISSION,
		"it has rights by its file (capabilities, or set-user-ID), which a "
		"program that writes to other processes must not have: remove them");
}

static struct stall_error *reduce_privileges(const struct stall_poke_options *options)
{
	const struct stall_privileges privileges = {
		.pokes = true,
		.opens_programs = options->action == STALL_POKE_LOOK,
		.opens_memory = options->action != STALL_POKE_LOOK,
	};

	return stall_privileges_reduce(&privileges);
}

static int report(struct stall_error *err)
{
	if (!err)
		return EXIT_DONE;
	fprintf(stderr, NAME ": %s\n", err->message);
	int status = err->code == STALL_ERROR_USAGE ? EXIT_USAGE : EXIT_FAILED;
	stall_error_destroy(err);
	return status;
}

// SIGCHLD is blocked. False: the child has not ended in that time.
static bool wait_for_child(pid_t child, uint64_t ms, int *ret_status)
{
	uint64_t until_ns = stall_clock_ns(CLOCK_MONOTONIC) + ms * 1000000;
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	for (;;) {
		if (waitpid(child, ret_status, WNOHANG) == child)
			return true;
		uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
		if (now_ns >= until_ns)
			return false;
		uint64_t left_ns = until_ns - now_ns;
		const struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000),
					      .tv_nsec = (long)(left_ns % 1000000000)};
		sigtimedwait(&signals, NULL, &left);
	}
}

static struct stall_error *late_error(const struct stall_poke_options *options, pid_t child)
{
	int status;

	kill(child, SIGKILL);
	if (wait_for_child(child, KILL_MS, &status))
		return stall_error_create(
			STALL_ERROR_LATE,
			"process %d, or a file system that it uses, did not answer in %llu ms",
			options->pid, (unsigned long long)options->deadline_ms);
	return stall_error_create(STALL_ERROR_LATE,
				  "process %d, or a file system that it uses, did not answer in "
				  "%llu ms; process %d was left behind, and ends when it does",
				  options->pid, (unsigned long long)options->deadline_ms, child);
}

// In a child, since what it reads may wait for a disk or for a lock of the process, and cannot always be
// interrupted then.
static int run_in_time(const struct stall_poke_options *options)
{
	pid_t parent = getpid();
	sigset_t signals, before;
	int status;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, &before);
	pid_t child = fork();
	if (child < 0)
		return report(stall_error_os(errno, "fork"));
	if (child == 0) {
		sigprocmask(SIG_SETMASK, &before, NULL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		// It may have been killed before that.
		if (getppid() != parent)
			_exit(EXIT_FAILED);
		_exit(report(stall_poke_run(options, STDOUT_FILENO)));
	}
	if (!wait_for_child(child, options->deadline_ms, &status))
		return report(late_error(options, child));
	return WIFEXITED(status)
		       ? WEXITSTATUS(status)
		       : report(stall_error_create(STALL_ERROR_OTHER, "killed by signal %d",
						   WTERMSIG(status)));
}

int main(int argc, char **argv)
{
	struct stall_poke_options options;

	// What it reads of a target is in its memory: no core dump of it. (The sanitizers' leak check
	// must be able to read its own process.)
#ifndef __SANITIZE_ADDRESS__
	prctl(PR_SET_DUMPABLE, 0);
#endif
	signal(SIGPIPE, SIG_IGN);
	struct stall_error *err = stall_poke_options_init(&options, argc, argv);
	if (!err)
		err = check_rights();
	if (err)
		return report(err);
	switch (options.action) {
	case STALL_POKE_HELP:
		fputs(stall_poke_help, stdout);
		break;
	case STALL_POKE_VERSION:
		puts(NAME " " STALL_VERSION);
		break;
	default:
		err = reduce_privileges(&options);
		return err ? report(err) : run_in_time(&options);
	}
	return fflush(stdout) || ferror(stdout) ? report(stall_error_os(errno, "standard output"))
						: EXIT_DONE;
}

// SPDX-License-Identifier: Apache-2.0
// stallscope-poke, the one program that writes to other processes. It is apart from stallscope-probe,
// which packages install with capabilities: who may run that can read with it, and no more.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
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

// Texts of the child: one that is left behind may have no output of ours open, which would keep who
// reads that.
struct texts {
	int output, errors;
};

static void texts_deinit(struct texts *texts)
{
	stall_closep(&texts->output);
	stall_closep(&texts->errors);
}

static struct stall_error *texts_init(struct texts *texts)
{
	texts->output = memfd_create("output", MFD_CLOEXEC);
	texts->errors = memfd_create("errors", MFD_CLOEXEC);
	return texts->output < 0 || texts->errors < 0 ? stall_error_os(errno, "memfd_create")
						      : NULL;
}

static struct stall_error *pass_on(int text, int to)
{
	char bytes[4096];
	off_t at = 0;
	ssize_t size;

	while ((size = pread(text, bytes, sizeof(bytes), at)) > 0) {
		for (ssize_t done = 0, n; done < size; done += n) {
			n = write(to, bytes + done, (size_t)(size - done));
			if (n < 0 && errno != EINTR)
				return stall_error_os(errno, "standard output");
			if (n < 0)
				n = 0;
		}
		at += size;
	}
	return NULL;
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
	_cleanup_(texts_deinit) struct texts texts = {-1, -1};
	pid_t parent = getpid();
	sigset_t signals, before;
	int status;

	struct stall_error *err = texts_init(&texts);
	if (err)
		return report(err);
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
		dup2(texts.output, STDOUT_FILENO);
		dup2(texts.errors, STDERR_FILENO);
		_exit(report(stall_poke_run(options, STDOUT_FILENO)));
	}
	if (!wait_for_child(child, options->deadline_ms, &status))
		return report(late_error(options, child));
	err = pass_on(texts.errors, STDERR_FILENO);
	if (!err)
		err = pass_on(texts.output, STDOUT_FILENO);
	if (err)
		return report(err);
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

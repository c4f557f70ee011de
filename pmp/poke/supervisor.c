// SPDX-License-Identifier: Apache-2.0
#include "poke/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "poke/poke_record.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#define NAME "supervisor"
#define READY_MS 10000
#define LOCK_PATIENCE_MS 1000
#define ATTEMPTS 20
#define ATTEMPT_MS 250
#define NO_PARTNER_MS 50 // until the next attempt to start one

struct supervisor {
	struct stall_poke poke;
	int record;	      // an open file of its own
	int ready;	      // -1: said
	uint64_t deadline_ns; // CLOCK_BOOTTIME: a suspended host does not prolong it
	int partner;	      // pidfd; -1: none
	pid_t child;	      // the partner, where this process started it
	uint64_t started_ns;  // when it did (CLOCK_MONOTONIC)
	int timer, signals, changes;
};

static bool is_over(struct supervisor *supervisor)
{
	return stall_poke_record_is_over(supervisor->record);
}

// Without its own timer, descriptors of events would be shared with the process it was forked from.
static bool open_events(struct supervisor *supervisor)
{
	const struct itimerspec at = {
		.it_value = {.tv_sec = supervisor->deadline_ns / 1000000000,
			     .tv_nsec = supervisor->deadline_ns % 1000000000},
	};
	char path[32];
	sigset_t term;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL);
	supervisor->signals = signalfd(-1, &term, SFD_CLOEXEC);
	supervisor->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC);
	supervisor->changes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", supervisor->record);
	if (supervisor->changes >= 0)
		inotify_add_watch(supervisor->changes, path, IN_MODIFY);
	// Without the other two it still undoes the poke at its deadline.
	return supervisor->timer >= 0 &&
	       timerfd_settime(supervisor->timer, TFD_TIMER_ABSTIME, &at, NULL) == 0;
}

static void close_events(struct supervisor *supervisor)
{
	int *fds[] = {&supervisor->timer, &supervisor->signals, &supervisor->changes};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

static void add_event(struct supervisor *supervisor, enum stall_poke_event event,
		      const char *detail)
{
	stall_error_destroy(stall_poke_record_add(supervisor->record, event, NAME, detail));
}

// Under the lock of the record. Returns an error that another attempt may not have.
static struct stall_error *undo_once(struct supervisor *supervisor)
{
	enum stall_poke_state found;
	struct stall_error *err;

	if (stall_poke_record_is_over(supervisor->record))
		return NULL;
	err = stall_poke_undo(&supervisor->poke, &found);
	if (!err)
		add_event(supervisor, STALL_POKE_UNDONE, found == STALL_POKE_OLD ? "old" : "new");
	return err;
}

static void undo(struct supervisor *supervisor)
{
	const struct timespec pause = {.tv_nsec = ATTEMPT_MS * 1000000};

	// A process that was stopped with the lock must not keep the poke in place. Values are
	// compared before each write, lock or none.
	bool locked = stall_poke_record_lock(supervisor->record, LOCK_PATIENCE_MS);
	for (int i = 1;; i++) {
		_cleanup_error_ struct stall_error *err = undo_once(supervisor);

		if (!err)
			break;
		if (err->code == STALL_ERROR_NO_PROCESS) {
			add_event(supervisor, STALL_POKE_ENDED, err->message);
			break;
		}
		if (err->code == STALL_ERROR_AGAIN || i == ATTEMPTS) {
			add_event(supervisor, STALL_POKE_REFUSED, err->message);
			break;
		}
		nanosleep(&pause, NULL);
	}
	if (locked)
		stall_poke_record_unlock(supervisor->record);
}

static void supervise(struct supervisor *supervisor);

// The new process goes on as `supervise()` does, and this one watches it.
static void start_partner(struct supervisor *supervisor)
{
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);

	// One that cannot even begin must not be started again and again.
	if (now - supervisor->started_ns < NO_PARTNER_MS * UINT64_C(1000000))
		return;
	supervisor->started_ns = now;
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	pid_t child = self < 0 ? -1 : fork();

	if (child == 0) {
		int inherited = supervisor->record;

		setsid();
		close_events(supervisor);
		supervisor->record = stall_poke_record_reopen(inherited);
		close(inherited);
		supervisor->partner = self;
		supervisor->child = 0;
		if (supervisor->record >= 0 && open_events(supervisor))
			supervise(supervisor);
		_exit(1);
	}
	if (self >= 0)
		close(self);
	if (child < 0)
		return;
	supervisor->child = child;
	supervisor->partner = syscall(SYS_pidfd_open, child, 0);
}

static void forget_partner(struct supervisor *supervisor)
{
	if (supervisor->child > 0)
		waitpid(supervisor->child, NULL, WNOHANG);
	close(supervisor->partner);
	supervisor->partner = -1;
	supervisor->child = 0;
}

static void say_ready(struct supervisor *supervisor)
{
	add_event(supervisor, STALL_POKE_SUPERVISED, NULL);
	if (supervisor->ready < 0)
		return;
	if (write(supervisor->ready, "1", 1) != 1) {
		// The command has been killed while it waited, or has given up: it writes nothing.
		if (!is_over(supervisor))
			add_event(supervisor, STALL_POKE_NOT_WRITTEN, "the command has ended");
		_exit(1);
	}
	close(supervisor->ready);
	supervisor->ready = -1;
}

static void drain(int fd)
{
	char buf[4096];

	while (read(fd, buf, sizeof(buf)) > 0)
		;
}

enum { TIMER, SIGNALS, CHANGES, PARTNER, TARGET, EVENTS };

static void __attribute__((noreturn)) watch(struct supervisor *supervisor)
{
	for (;;) {
		struct pollfd fds[EVENTS] = {
			[TIMER] = {.fd = supervisor->timer, .events = POLLIN},
			[SIGNALS] = {.fd = supervisor->signals, .events = POLLIN},
			[CHANGES] = {.fd = supervisor->changes, .events = POLLIN},
			[PARTNER] = {.fd = supervisor->partner, .events = POLLIN},
			[TARGET] = {.fd = supervisor->poke.process.target.pidfd, .events = POLLIN},
		};

		if (poll(fds, EVENTS, supervisor->partner < 0 ? NO_PARTNER_MS : -1) < 0)
			continue;
		if (fds[TIMER].revents || fds[SIGNALS].revents || fds[TARGET].revents)
			break;
		if (fds[CHANGES].revents)
			drain(supervisor->changes);
		if (fds[PARTNER].revents)
			forget_partner(supervisor);
		if ((fds[CHANGES].revents || fds[PARTNER].revents) && is_over(supervisor))
			_exit(0);
		if (supervisor->partner < 0)
			start_partner(supervisor);
	}
	undo(supervisor);
	_exit(0);
}

static void supervise(struct supervisor *supervisor)
{
	if (supervisor->partner < 0)
		start_partner(supervisor);
	say_ready(supervisor);
	watch(supervisor);
}

static void __attribute__((noreturn))
begin(const struct stall_poke *poke, int record, int ready, uint64_t deadline_ns)
{
	const struct stall_poke_process *process = &poke->process;
	const int fds[] = {process->target.pidfd, process->target.procfd, process->memory, record,
			   ready};
	struct supervisor supervisor = {
		.poke = *poke,
		.ready = STALL_CHILD_FD + 4,
		.deadline_ns = deadline_ns,
		.partner = -1,
		.timer = -1,
		.signals = -1,
		.changes = -1,
	};

	setsid();
	stall_child_set_signals();
	stall_child_keep_only(fds, 5);
	prctl(PR_SET_NAME, "poke-supervisor");
	if (chdir("/") < 0)
		_exit(1);
	supervisor.poke.process.target.pidfd = STALL_CHILD_FD;
	supervisor.poke.process.target.procfd = STALL_CHILD_FD + 1;
	supervisor.poke.process.memory = STALL_CHILD_FD + 2;
	supervisor.record = stall_poke_record_reopen(STALL_CHILD_FD + 3);
	close(STALL_CHILD_FD + 3);
	if (supervisor.record >= 0 && open_events(&supervisor))
		supervise(&supervisor);
	_exit(1);
}

// One byte of each.
static bool wait_ready(int fd)
{
	uint64_t until = stall_clock_ns(CLOCK_MONOTONIC) + READY_MS * UINT64_C(1000000);
	int got = 0;

	while (got < 2) {
		uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);
		struct pollfd pollfd = {.fd = fd, .events = POLLIN};
		char bytes[2];

		if (now >= until)
			return false;
		if (poll(&pollfd, 1, (int)((until - now) / 1000000) + 1) <= 0)
			continue;
		ssize_t n = read(fd, bytes, 2 - got);
		if (n <= 0)
			return false;
		got += n;
	}
	return true;
}

struct stall_error *stall_supervisor_start(const struct stall_poke *poke, int record,
					   uint64_t duration_ns)
{
	uint64_t deadline_ns = stall_clock_ns(CLOCK_BOOTTIME) + duration_ns;
	int ready[2];

	if (pipe2(ready, O_CLOEXEC) < 0)
		return stall_error_os(errno, "cannot start the supervisor");
	pid_t child = fork();
	if (child == 0)
		begin(poke, record, ready[1], deadline_ns);
	close(ready[1]);
	_cleanup_close_ int in = ready[0];
	if (child < 0)
		return stall_error_os(errno, "cannot start the supervisor");
	if (!wait_ready(in))
		return stall_error_create(STALL_ERROR_OTHER,
					  "the supervisor did not start: nothing was written to "
					  "process %d",
					  poke->process.target.pid);
	return NULL;
}

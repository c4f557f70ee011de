// SPDX-License-Identifier: Apache-2.0
// upheavals FOLDER KIND COUNT SEED: what interrupts threads in the middle of their waits, so often, or
// for a minute where the disk is slow. Ends by itself with 0, if every lock is usable and every count
// right afterwards; prints what it did.
//
//   cancel    threads are cancelled while they wait for a condition or for files
//   fork      fork, vfork and clone while threads compete for locks; children wait, too
//   signal    handlers sync, write and unlink in the middle of waits
//   jump      handlers leave waits for files by siglongjmp()
//   steps     handlers leave the first wait of a process before and after each of its calls
//   churn     short lives of threads that wait
#include "target.h"

#include <glob.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid /* glibc */
#endif
#define FIGHTERS 4
#define BLOCK 32768
#define AT_ONCE 16

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t cond_mutex = PTHREAD_MUTEX_INITIALIZER;
static char block[BLOCK];
static int file = -1;
static unsigned long done, cleanups, guarded, rounds_done;
static bool ends;

static void fail(const char *what)
{
	fprintf(stderr, "upheavals: %s\n", what);
	_exit(2);
}

static void check(int error, const char *what)
{
	if (error)
		fail(what);
}
#define CHECK(call) check(call, #call)

static void count(unsigned long *what)
{
	__atomic_add_fetch(what, 1, __ATOMIC_RELAXED);
}

static bool is_enough(unsigned long rounds)
{
	static uint64_t start_ns;

	if (!start_ns)
		start_ns = target_now();
	return rounds_done >= rounds || target_now() - start_ns > TARGET_PATIENCE_NS;
}

static void wait_a_little(void)
{
	struct timespec until = target_after(CLOCK_REALTIME, 200000);

	CHECK(pthread_mutex_lock(&cond_mutex));
	if (pthread_cond_timedwait(&cond, &cond_mutex, &until) != ETIMEDOUT)
		fail("nobody signals");
	CHECK(pthread_mutex_unlock(&cond_mutex));
}

static void fight_once(void)
{
	CHECK(pthread_mutex_lock(&mutex));
	guarded++;
	sched_yield();
	CHECK(pthread_mutex_unlock(&mutex));
	CHECK(pthread_rwlock_rdlock(&rwlock));
	CHECK(pthread_rwlock_unlock(&rwlock));
	CHECK(pthread_rwlock_wrlock(&rwlock));
	sched_yield();
	CHECK(pthread_rwlock_unlock(&rwlock));
	count(&done);
}

static void *fight(void *arg)
{
	while (!__atomic_load_n(&ends, __ATOMIC_RELAXED))
		fight_once();
	return NULL;
}

/* cancel */

static void unlock_after_wait(void *arg)
{
	// The mutex is ours again when a wait for a condition is cancelled.
	CHECK(pthread_mutex_unlock(&cond_mutex));
	count(&cleanups);
}

static void *wait_forever(void *arg)
{
	CHECK(pthread_mutex_lock(&cond_mutex));
	pthread_cleanup_push(unlock_after_wait, NULL);
	for (;;)
		CHECK(pthread_cond_wait(&cond, &cond_mutex));
	pthread_cleanup_pop(0);
	return NULL;
}

static void count_cleanup(void *arg)
{
	count(&cleanups);
}

static void *sync_forever(void *arg)
{
	pthread_cleanup_push(count_cleanup, NULL);
	for (;;) {
		if (pwrite(file, block, BLOCK, 0) != BLOCK || fsync(file) || fdatasync(file))
			fail("fsync");
		count(&done);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel_some(unsigned long rounds)
{
	for (; !is_enough(rounds); rounds_done++) {
		pthread_t threads[AT_ONCE];

		for (int nr = 0; nr < AT_ONCE; nr++)
			threads[nr] = target_thread(nr % 2 ? wait_forever : sync_forever, NULL, 0);
		struct timespec nap = {.tv_nsec = rand() % 2000000};
		nanosleep(&nap, NULL);
		for (int nr = 0; nr < AT_ONCE; nr++)
			CHECK(pthread_cancel(threads[nr]));
		for (int nr = 0; nr < AT_ONCE; nr++) {
			void *result;

			CHECK(pthread_join(threads[nr], &result));
			if (result != PTHREAD_CANCELED)
				fail("a thread was not cancelled");
		}
	}
	wait_a_little();
}

/* fork */

static void be_a_child(void)
{
	wait_a_little();
	if (pwrite(file, block, BLOCK, 0) != BLOCK || fsync(file))
		fail("fsync in a child");
	_exit(0);
}

static char *const true_arguments[] = {"true", NULL};

static NOIPA pid_t make_child(unsigned long nr)
{
	pid_t child;

	switch (nr % 4) {
	case 0:
		child = fork();
		if (!child)
			be_a_child();
		return child;
	case 1:
		child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		if (!child)
			be_a_child();
		return child;
	case 2:
		child = vfork();
		if (!child) {
			execv("/bin/true", true_arguments);
			_exit(1);
		}
		return child;
	default:
		errno = posix_spawn(&child, "/bin/true", NULL, NULL, true_arguments, NULL);
		return errno ? -1 : child;
	}
}

static void fork_some(unsigned long rounds)
{
	for (; !is_enough(rounds); rounds_done++) {
		pid_t child = make_child(rounds_done);
		int status;

		if (child < 0)
			target_die("fork");
		if (waitpid(child, &status, 0) != child || status)
			fail("a child failed");
		count(&done);
	}
}

/* signal */

static void on_signal(int number)
{
	int kept = errno;

	if (fsync(file) || pwrite(file, block, BLOCK, BLOCK) != BLOCK || fdatasync(file))
		fail("fsync in a handler");
	if (!unlink("none") || errno != ENOENT)
		fail("unlink in a handler");
	count(&cleanups);
	errno = kept;
}

static void *fight_and_wait(void *arg)
{
	while (!__atomic_load_n(&ends, __ATOMIC_RELAXED)) {
		fight_once();
		wait_a_little();
		if (pread(file, block, BLOCK, 0) < 0)
			fail("pread");
	}
	return NULL;
}

static void signal_some(unsigned long rounds)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	pthread_t threads[FIGHTERS];

	sigaction(SIGUSR1, &action, NULL);
	for (int i = 0; i < FIGHTERS; i++)
		threads[i] = target_thread(fight_and_wait, NULL, 0);
	for (; !is_enough(rounds); rounds_done++) {
		struct timespec nap = {.tv_nsec = rand() % 300000};

		CHECK(pthread_kill(threads[rounds_done % FIGHTERS], SIGUSR1));
		nanosleep(&nap, NULL);
	}
	__atomic_store_n(&ends, true, __ATOMIC_RELAXED);
	for (int i = 0; i < FIGHTERS; i++)
		CHECK(pthread_join(threads[i], NULL));
}

/* jump */

static sigjmp_buf way_out;
static volatile sig_atomic_t may_jump;

static void jump_out(int number)
{
	if (may_jump)
		siglongjmp(way_out, 1);
}

static void jump_some(unsigned long rounds)
{
	struct sigaction action = {.sa_handler = jump_out};
	struct itimerspec time = {.it_value.tv_nsec = 1};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
	timer_t timer;

	event.sigev_notify_thread_id = getpid(); // only this thread may jump to its frames
	sigaction(SIGALRM, &action, NULL);
	if (timer_create(CLOCK_MONOTONIC, &event, &timer))
		target_die("timer_create");
	for (; !is_enough(rounds); rounds_done++) {
		if (!sigsetjmp(way_out, 1)) {
			may_jump = 1;
			time.it_value.tv_nsec = 1 + rand() % 300000;
			timer_settime(timer, 0, &time, NULL);
			for (;;)
				if (fsync(file) || pwrite(file, block, BLOCK, 0) != BLOCK)
					fail("fsync");
		}
		may_jump = 0;
		wait_a_little(); // which is recorded as ever
		count(&cleanups);
	}
	timer_delete(timer);
}

/* steps */

static void wait_first(void)
{
	struct sigaction action = {.sa_handler = jump_out};

	sigaction(SIGALRM, &action, NULL);
	may_jump = 1;
	if (!sigsetjmp(way_out, 1)) {
		ptrace(PTRACE_TRACEME);
		raise(SIGSTOP);
		if (fsync(file) || fsync(file))
			fail("fsync");
	}
	may_jump = 0;
	if (fsync(file))
		fail("fsync after a jump");
	wait_a_little();
	_exit(0);
}

// The library removes all rings but the latest of those who have ended.
static void keep_ring(pid_t owner)
{
	char pattern[4096], kept[4096];
	const char *folder = getenv("STALLSCOPE_RUNTIME_DIR");
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s/%d-*", folder, owner);
	snprintf(kept, sizeof(kept), "%s/kept-%d", folder, owner);
	if (glob(pattern, 0, NULL, &found) || link(found.gl_pathv[0], kept))
		fail("no ring");
	globfree(&found);
}

// False: the child has ended.
static bool runs_on(pid_t child, int request)
{
	int status;

	if (ptrace(request, child, 0, 0) || waitpid(child, &status, 0) != child ||
	    (WIFEXITED(status) ? WEXITSTATUS(status) : WSTOPSIG(status) != SIGTRAP))
		fail("a step");
	return WIFSTOPPED(status);
}

static bool is_before_call(pid_t child)
{
	struct user_regs_struct regs;

	if (ptrace(PTRACE_GETREGS, child, 0, &regs))
		fail("registers");
	return (ptrace(PTRACE_PEEKTEXT, child, regs.rip, 0) & 0xffff) == 0x050f;
}

// Interrupts a child after this many of its system calls and `most` more instructions, or before its
// next call. Returns how many instructions it was; -1: the child ended first.
static long interrupt_child(long calls, long most)
{
	long steps = 0;
	int status;
	bool runs = true;
	pid_t child = fork();

	if (!child)
		wait_first();
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
		fail("no child to step");
	for (long stops = 0; runs && stops < 2 * calls; stops++)
		runs = runs_on(child, PTRACE_SYSCALL);
	for (; runs && steps < most && !is_before_call(child); steps++)
		runs = runs_on(child, PTRACE_SINGLESTEP);
	if (runs && (kill(child, SIGALRM) || ptrace(PTRACE_DETACH, child, 0, 0) ||
		     waitpid(child, &status, 0) != child || status))
		fail("a child ended badly");
	keep_ring(child);
	return runs ? steps : -1;
}

static void jump_after_steps(unsigned long rounds)
{
	long steps;

	for (; !is_enough(rounds); rounds_done++) {
		interrupt_child((long)rounds_done, 0);
		steps = interrupt_child((long)rounds_done, LONG_MAX);
		if (steps < 0)
			break;
		interrupt_child((long)rounds_done, rand() % (steps + 1));
	}
}

/* churn */

static void *live_shortly(void *arg)
{
	fight_once();
	wait_a_little();
	return NULL;
}

static void churn_some(unsigned long rounds)
{
	for (; !is_enough(rounds); rounds_done += AT_ONCE) {
		pthread_t threads[AT_ONCE];

		for (int nr = 0; nr < AT_ONCE; nr++)
			threads[nr] = target_thread(live_shortly, NULL, 65536);
		for (int nr = 0; nr < AT_ONCE; nr++)
			CHECK(pthread_join(threads[nr], NULL));
	}
}

static void while_locks_are_taken(void (*some)(unsigned long), unsigned long rounds)
{
	pthread_t threads[FIGHTERS];

	for (int i = 0; i < FIGHTERS; i++)
		threads[i] = target_thread(fight, NULL, 0);
	some(rounds);
	__atomic_store_n(&ends, true, __ATOMIC_RELAXED);
	for (int i = 0; i < FIGHTERS; i++)
		CHECK(pthread_join(threads[i], NULL));
}

int main(int argc, char **argv)
{
	if (argc != 5 || chdir(argv[1])) {
		fprintf(stderr, "usage: upheavals FOLDER KIND COUNT SEED\n");
		return 1;
	}
	unsigned long rounds = strtoul(argv[3], NULL, 10);
	srand((unsigned)strtoul(argv[4], NULL, 10));
	file = open("file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0)
		target_die("file");
	// Others jump out of the making of the ring, too.
	if (strcmp(argv[2], "jump") && strcmp(argv[2], "steps"))
		wait_a_little();
	if (!strcmp(argv[2], "cancel"))
		while_locks_are_taken(cancel_some, rounds);
	else if (!strcmp(argv[2], "fork"))
		while_locks_are_taken(fork_some, rounds);
	else if (!strcmp(argv[2], "signal"))
		signal_some(rounds);
	else if (!strcmp(argv[2], "jump"))
		jump_some(rounds);
	else if (!strcmp(argv[2], "steps"))
		jump_after_steps(rounds);
	else if (!strcmp(argv[2], "churn"))
		churn_some(rounds);
	else
		fail("no such kind");
	fight_once();
	wait_a_little();
	printf("{\"rounds\":%lu,\"done\":%lu,\"cleanups\":%lu,\"guarded\":%lu}\n", rounds_done,
	       done, cleanups, guarded);
	return 0;
}

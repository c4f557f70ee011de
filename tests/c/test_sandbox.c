// SPDX-License-Identifier: Apache-2.0
// What is left to a process in the sandbox.
#include "sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "check.h"
#include "sandbox/untrusted.h"

#define LAST_CALL 600 // above all that Linux 6.18 has
#define FIRST_UID 0x75400000U
#define FIRST_SMALL_UID 65520U

// With any arguments, or with some.
static const int allowed[] = {
	SYS_read,	  SYS_write,	      SYS_close,
	SYS_fstat,	  SYS_poll,	      SYS_lseek,
	SYS_mmap,	  SYS_mprotect,	      SYS_munmap,
	SYS_brk,	  SYS_pread64,	      SYS_readv,
	SYS_writev,	  SYS_mremap,	      SYS_madvise,
	SYS_sendto,	  SYS_recvfrom,	      SYS_sendmsg,
	SYS_recvmsg,	  SYS_getpid,	      SYS_getppid,
	SYS_gettid,	  SYS_geteuid,	      SYS_fcntl,
	SYS_futex,	  SYS_getdents64,     SYS_clock_gettime,
	SYS_getrandom,	  SYS_setitimer,      SYS_wait4,
	SYS_statx,	  SYS_newfstatat,     SYS_exit,
	SYS_exit_group,	  SYS_rt_sigaction,   SYS_sigaltstack,
	SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_restart_syscall,
};

// The trampolines of uprobes call these: no filter sees them, and others who call them get SIGILL
// (kernel/seccomp.c, seccomp_uprobe_exception).
#define FIRST_OF_UPROBES 335
#define LAST_OF_UPROBES 336

static bool is_allowed(int number)
{
	if (number >= FIRST_OF_UPROBES && number <= LAST_OF_UPROBES)
		return true;
	for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
		if (allowed[i] == number)
			return true;
	return false;
}

static bool is_refused(long result)
{
	return result == -1 && errno == EPERM;
}

static void check_refused(bool refused, const char *what, int number)
{
	check_passed += refused;
	check_failed += !refused;
	if (!refused)
		fprintf(stderr, "%s %d is not refused\n", what, number);
}

static void test_every_call(void)
{
	for (int number = 0; number < LAST_CALL; number++)
		if (!is_allowed(number))
			check_refused(is_refused(syscall(number, -1, -1, -1, -1, -1, -1)),
				      "system call", number);
	// The same by the numbers of x32.
	CHECK(is_refused(syscall(0x40000000 | SYS_read, 0, NULL, 0)));
	CHECK(is_refused(syscall(0x40000000 | SYS_openat, AT_FDCWD, "/etc/passwd", O_RDONLY)));
}

static void test_arguments(int socket)
{
	const struct itimerval never = {};
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int word = 0;
	struct stat st;
	struct statx status;

	for (int command = -1; command < 2048; command++)
		if (command != F_GETFD && command != F_GETFL)
			check_refused(is_refused(syscall(SYS_fcntl, socket, command, 0)), "fcntl",
				      command);
	for (int operation = 0; operation < 512; operation++)
		if (operation != FUTEX_WAIT_PRIVATE && operation != FUTEX_WAKE_PRIVATE)
			check_refused(is_refused(syscall(SYS_futex, &word, operation, 1, NULL, NULL,
							 0)),
				      "futex", operation);
	CHECK(fcntl(socket, F_GETFL) >= 0);
	CHECK(page != MAP_FAILED);
	CHECK(is_refused(mprotect(page, 4096, PROT_READ | PROT_EXEC)));
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
		      MAP_FAILED &&
	      errno == EPERM);
	CHECK(is_refused(setitimer(ITIMER_REAL, &never, NULL)));
	CHECK(is_refused(setitimer(ITIMER_VIRTUAL, &never, NULL)));
	CHECK_INT(setitimer(ITIMER_PROF, &never, NULL), 0);
	CHECK(is_refused(syscall(SYS_newfstatat, AT_FDCWD, "/etc/passwd", &st, 0)));
	CHECK(is_refused(syscall(SYS_statx, AT_FDCWD, "/etc/passwd", 0, 0, &status)));
	CHECK_INT(syscall(SYS_newfstatat, socket, "", &st, AT_EMPTY_PATH), 0);
}

// The other end's owner is killed by data on a socket that has such an owner and such a signal.
static void test_signals(int socket, pid_t victim)
{
	CHECK(is_refused(kill(victim, SIGKILL)));
	CHECK(is_refused(fcntl(socket, F_SETOWN, victim)));
	CHECK(is_refused(fcntl(socket, F_SETSIG, SIGKILL)));
	CHECK(is_refused(fcntl(socket, F_SETFL, O_ASYNC)));
}

static void in_sandbox(int socket, pid_t parent, pid_t victim)
{
	const struct stall_sandbox_options options = {.parent = parent, .cpu_seconds = 100};
	bool was_root = geteuid() == 0;
	unsigned int missing = 0;

	CHECK_OK(stall_sandbox_enter(&options, &missing));
	if (was_root && !(missing & 1U << STALL_SANDBOX_UID))
		CHECK(geteuid() == FIRST_UID + (uid_t)getpid() ||
		      (geteuid() >= FIRST_SMALL_UID && geteuid() < 65534));
	CHECK(!(missing & 1U << STALL_SANDBOX_SECCOMP));
	test_signals(socket, victim);
	test_arguments(socket);
	test_every_call();
}

static pid_t idle(void)
{
	pid_t child = fork();

	if (child == 0)
		for (;;)
			pause();
	return child;
}

static void test_sandbox(void)
{
	pid_t victim = idle(), parent = getpid(), child;
	int sockets[2], status = 0;

	CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	child = fork();
	if (child == 0) {
		in_sandbox(sockets[1], parent, victim);
		_exit(check_done());
	}
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK_INT(status, 0);
	CHECK_INT(waitpid(victim, &status, WNOHANG), 0); // it lives
	kill(victim, SIGKILL);
	CHECK_INT(waitpid(victim, &status, 0), victim);
	close(sockets[0]);
	close(sockets[1]);
}

static void test_layers(void)
{
	CHECK_INT(stall_sandbox_try() & 1U << STALL_SANDBOX_SECCOMP, 0);
	for (int i = 0; i < STALL_SANDBOX_LAYERS; i++)
		CHECK(strlen(stall_sandbox_layer_name(i)) > 2);
}

/* Work by an untrusted child. */

static struct stall_error *write_much(void *arg, struct stall_output *output, void *ret_answer)
{
	char bytes[4096] = "";
	struct stall_error *err = NULL;

	while (!err)
		err = stall_output_write(output, bytes, sizeof(bytes));
	return err;
}

static struct stall_error *never_end(void *arg, struct stall_output *output, void *ret_answer)
{
	for (;;)
		poll(NULL, 0, 1000000);
	return NULL;
}

static struct stall_error *die(void *arg, struct stall_output *output, void *ret_answer)
{
	_exit(0);
}

static struct stall_error *answer(void *arg, struct stall_output *output, void *ret_answer)
{
	memset(ret_answer, *(int *)arg, 3);
	return NULL;
}

static struct stall_error *run(struct stall_untrusted work, char ret[4])
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	unsigned int missing;

	work.path = "/some/file";
	work.what = "file";
	CHECK_OK(stall_output_create_fd(null, &output));
	struct stall_error *err = stall_untrusted_run(&work, output, ret, &missing);
	close(null);
	return err;
}

static void check_fails(struct stall_untrusted work, enum stall_error_code code)
{
	char nothing[4];
	struct stall_error *err = run(work, nothing);

	CHECK(err && err->code == code && strstr(err->message, "/some/file"));
	stall_error_destroy(err);
}

static void test_untrusted(void)
{
	int value = 7;
	char got[4] = "";

	check_fails((struct stall_untrusted){.run = write_much, .max_bytes = 1 << 20},
		    STALL_ERROR_LIMIT);
	check_fails((struct stall_untrusted){.run = never_end, .deadline_ms = 50},
		    STALL_ERROR_LATE);
	check_fails((struct stall_untrusted){.run = die}, STALL_ERROR_OTHER);
	CHECK_OK(
		run((struct stall_untrusted){.run = answer, .arg = &value, .answer_size = 3}, got));
	CHECK(!memcmp(got, "\7\7\7\0", 4));
}

// What a child sends beyond what it was asked for stays with no one.
static void test_descriptors(void)
{
	char byte = 'x';
	struct iovec part = {&byte, 1};
	int sockets[2], got, two[2] = {0, 0};

	CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	CHECK_INT(stall_send_descriptors(sockets[0], &part, 1, two, 2, 0), 1);
	CHECK_INT(stall_receive_descriptor(sockets[1], &part, 1, &got), 1);
	int next = dup(0);
	CHECK_INT(next, got + 1);
	close(next);
	close(got);
	close(sockets[0]);
	close(sockets[1]);
}

int main(void)
{
	test_descriptors();
	test_sandbox();
	test_layers();
	test_untrusted();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// lives: changes itself as servers do, and waits in between. Commands, each answered
// when it is done:
//
//   wait         at a condition variable, until a time has passed
//   close        closes all files but stdin and stdout, and opens others under their numbers
//   intact       reports whether nobody has written to those
//   user UID     becomes that user
//   root DIR     makes DIR its root folder
//   undumpable   nobody may read it any more
//   fork         continues as its own child; the parent ends
//   exec         executes itself
//   exit STATUS  ends, with all that is to be done at the end; no answer
//   _exit STATUS ends at once
#include "target.h"

#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define FIRST_FILE 2
#define LAST_FILE 40
#define FILE_SIZE 4096

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

static NOIPA void wait_once(void)
{
	struct timespec until = target_after(CLOCK_REALTIME, 2000000);

	pthread_mutex_lock(&mutex);
	while (pthread_cond_timedwait(&cond, &mutex, &until) != ETIMEDOUT)
		continue;
	pthread_mutex_unlock(&mutex);
}

static void replace_files(void)
{
	char pattern[FILE_SIZE];

	memset(pattern, 0xa5, sizeof(pattern));
	if (syscall(SYS_close_range, FIRST_FILE, ~0U, 0))
		target_die("close_range");
	for (int fd = FIRST_FILE; fd <= LAST_FILE; fd++) {
		if (memfd_create("ours", 0) != fd)
			target_die("memfd_create");
		if (pwrite(fd, pattern, sizeof(pattern), 0) != sizeof(pattern))
			target_die("pwrite");
	}
}

static bool are_intact(void)
{
	for (int fd = FIRST_FILE; fd <= LAST_FILE; fd++) {
		unsigned char found[FILE_SIZE + 1];
		ssize_t got = pread(fd, found, sizeof(found), 0);

		if (got != FILE_SIZE || lseek(fd, 0, SEEK_CUR))
			return false;
		for (int i = 0; i < FILE_SIZE; i++)
			if (found[i] != 0xa5)
				return false;
	}
	// Nothing new among the numbers, either.
	return fcntl(LAST_FILE + 1, F_GETFD) < 0 && errno == EBADF;
}

static void become(uid_t uid)
{
	if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		target_die("setresuid");
}

static void continue_as_child(void)
{
	pid_t child = fork();

	if (child < 0)
		target_die("fork");
	if (child)
		exit(0);
	setsid();
}

static void answer(const char *command)
{
	char path[100];
	unsigned int uid;
	int status;

	if (!strcmp(command, "wait")) {
		wait_once();
	} else if (!strcmp(command, "close")) {
		replace_files();
	} else if (!strcmp(command, "intact")) {
		printf("{\"intact\":%s}\n", are_intact() ? "true" : "false");
		return;
	} else if (sscanf(command, "user %u", &uid) == 1) {
		become(uid);
	} else if (sscanf(command, "root %99s", path) == 1) {
		if (chroot(path) || chdir("/"))
			target_die("chroot");
	} else if (!strcmp(command, "undumpable")) {
		if (prctl(PR_SET_DUMPABLE, 0))
			target_die("prctl");
	} else if (!strcmp(command, "fork")) {
		continue_as_child();
	} else if (sscanf(command, "exit %d", &status) == 1) {
		exit(status);
	} else if (sscanf(command, "_exit %d", &status) == 1) {
		_exit(status);
	} else if (!strcmp(command, "exec")) {
		execl("/proc/self/exe", "lives", "again", NULL);
		target_die("execl");
	} else {
		printf("{\"error\":\"no such command\"}\n");
		return;
	}
	printf("{\"pid\":%d}\n", getpid());
}

int main(int argc, char **argv)
{
	if (argc > 1) { // executed by itself: this is the answer
		printf("{\"pid\":%d}\n", getpid());
		fflush(stdout);
	} else {
		target_ready();
	}
	target_serve(answer);
}

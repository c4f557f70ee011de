// SPDX-License-Identifier: Apache-2.0
// Ways for a thread to wait without end, each in a function of its own name.
#ifndef WAITS_H
#define WAITS_H

#include "target.h"

#include <linux/futex.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct {
	pthread_mutex_t held_mutex, cond_mutex;
	pthread_cond_t cond;
	pthread_rwlock_t write_held, read_held;
	sem_t sem;
	uint32_t futex;
	int epoll, pipe[2], socket[2], listen, event, flock, semid, msgid;
} waits = {
	.held_mutex = PTHREAD_MUTEX_INITIALIZER,
	.cond_mutex = PTHREAD_MUTEX_INITIALIZER,
	.cond = PTHREAD_COND_INITIALIZER,
	.write_held = PTHREAD_RWLOCK_INITIALIZER,
	.read_held = PTHREAD_RWLOCK_INITIALIZER,
};

// Calls again whatever ended the call: nothing here is ever satisfied.
#define WAIT(name, ...)                                                                            \
	NOIPA void wait_##name(void *arg);                                                         \
	NOIPA void wait_##name(void *arg)                                                          \
	{                                                                                          \
		(void)arg;                                                                         \
		for (;;) {                                                                         \
			__VA_ARGS__;                                                               \
			KEEP_FRAME();                                                              \
		}                                                                                  \
	}

WAIT(mutex, pthread_mutex_lock(&waits.held_mutex))
WAIT(rdlock, pthread_rwlock_rdlock(&waits.write_held))
WAIT(wrlock, pthread_rwlock_wrlock(&waits.read_held))
WAIT(cond, {
	pthread_mutex_lock(&waits.cond_mutex);
	pthread_cond_wait(&waits.cond, &waits.cond_mutex);
	pthread_mutex_unlock(&waits.cond_mutex);
})
WAIT(sem, sem_wait(&waits.sem))
WAIT(futex, syscall(SYS_futex, &waits.futex, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0))
WAIT(epoll, {
	struct epoll_event event;
	epoll_wait(waits.epoll, &event, 1, -1);
})
WAIT(poll, poll(NULL, 0, -1))
WAIT(nanosleep, {
	struct timespec day = {.tv_sec = 86400};
	nanosleep(&day, NULL);
})
WAIT(read, {
	char c;
	if (read(waits.pipe[0], &c, 1) < 0)
		KEEP_FRAME();
})
WAIT(recv, {
	char c;
	recv(waits.socket[0], &c, 1, 0);
})
WAIT(accept, accept(waits.listen, NULL, NULL))
WAIT(eventfd, {
	eventfd_t value;
	eventfd_read(waits.event, &value);
})
WAIT(flock, {
	// A lock belongs to the open file: this one is not the one that holds it.
	char path[64];
	int fd;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", waits.flock);
	fd = open(path, O_RDWR | O_CLOEXEC);
	flock(fd, LOCK_EX);
	close(fd);
})
WAIT(semop, {
	struct sembuf down = {.sem_num = 0, .sem_op = -1};
	semtimedop(waits.semid, &down, 1, NULL);
})
WAIT(msgrcv, {
	struct {
		long type;
		char text[8];
	} message;
	msgrcv(waits.msgid, &message, sizeof(message.text), 0, 0);
})
WAIT(sigwait, {
	sigset_t set;
	int signal;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMAX);
	sigwait(&set, &signal);
})
WAIT(pause, pause())

struct wait_kind {
	const char *name;
	void (*wait)(void *);
	long syscall;
	const void *object; // first argument lies in it; NULL: not read
	size_t size;
};

#define KIND(name, nr, object, size)                                                               \
	{                                                                                          \
#name, wait_##name, (SYS_##nr), object, size                                       \
	}
static const struct wait_kind wait_kinds[] = {
	KIND(mutex, futex, &waits.held_mutex, sizeof(waits.held_mutex)),
	KIND(cond, futex, &waits.cond, sizeof(waits.cond)),
	KIND(epoll, epoll_wait, NULL, 0),
	KIND(rdlock, futex, &waits.write_held, sizeof(waits.write_held)),
	KIND(poll, poll, NULL, 0),
	KIND(wrlock, futex, &waits.read_held, sizeof(waits.read_held)),
	KIND(nanosleep, clock_nanosleep, NULL, 0),
	KIND(read, read, NULL, 0),
	KIND(sem, futex, &waits.sem, sizeof(waits.sem)),
	KIND(recv, recvfrom, NULL, 0),
	KIND(semop, semtimedop, NULL, 0),
	KIND(futex, futex, &waits.futex, sizeof(waits.futex)),
	KIND(accept, accept, NULL, 0),
	KIND(msgrcv, msgrcv, NULL, 0),
	KIND(eventfd, read, NULL, 0),
	KIND(sigwait, rt_sigtimedwait, NULL, 0),
	KIND(flock, flock, NULL, 0),
	KIND(pause, pause, NULL, 0),
};
#define WAIT_KINDS (sizeof(wait_kinds) / sizeof(wait_kinds[0]))

static inline const struct wait_kind *waits_find(const char *name)
{
	for (size_t i = 0; i < WAIT_KINDS; i++)
		if (!strcmp(wait_kinds[i].name, name))
			return &wait_kinds[i];
	errno = EINVAL;
	target_die(name);
}

// Takes every lock and makes every object that the waits need. The calling thread is the owner.
static inline void waits_init(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	sigset_t set;

	// SysV objects outlive a process that was killed, unless their namespace dies with it.
	if (unshare(CLONE_NEWIPC) && errno != EPERM)
		target_die("unshare");
	// Inherited by every thread, so that only sigwait takes it.
	sigemptyset(&set);
	sigaddset(&set, SIGRTMAX);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	pthread_mutex_lock(&waits.held_mutex);
	pthread_rwlock_wrlock(&waits.write_held);
	pthread_rwlock_rdlock(&waits.read_held);
	sem_init(&waits.sem, 0, 0);
	waits.epoll = epoll_create1(EPOLL_CLOEXEC);
	waits.event = eventfd(0, EFD_CLOEXEC);
	waits.listen = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	// Only the family given: the kernel picks an abstract name (unix(7), autobind).
	if (waits.epoll < 0 || waits.event < 0 || waits.listen < 0 ||
	    bind(waits.listen, (struct sockaddr *)&address, sizeof(sa_family_t)) ||
	    listen(waits.listen, 1) || pipe2(waits.pipe, O_CLOEXEC) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, waits.socket))
		target_die("socket");
	waits.flock = memfd_create("flock", MFD_CLOEXEC);
	if (waits.flock < 0 || flock(waits.flock, LOCK_EX))
		target_die("flock");
	waits.semid = semget(IPC_PRIVATE, 1, 0600);
	waits.msgid = msgget(IPC_PRIVATE, 0600);
	if (waits.semid < 0 || waits.msgid < 0)
		target_die("semget");
}

// Where the namespace is shared (not root), the objects have to be taken away.
static __attribute__((destructor)) void waits_deinit(void)
{
	if (waits.semid > 0)
		semctl(waits.semid, 0, IPC_RMID);
	if (waits.msgid > 0)
		msgctl(waits.msgid, IPC_RMID, NULL);
}

static inline void waits_wait_blocked(const struct wait_kind *kind, pid_t tid)
{
	uintptr_t low = (uintptr_t)kind->object;

	target_wait_blocked(tid, kind->syscall, low, low ? low + kind->size : 0);
}

#endif

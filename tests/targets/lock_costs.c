// SPDX-License-Identifier: Apache-2.0
// lock_costs: measures what locks cost in CPU time, with a library that interposes them and
// without. Command: `KIND BATCHES`, as of costs.c. Kinds: mutex, rdlock, wrlock: taken and released
// by one thread; signal, of nobody; pass: two threads take three mutexes in turn, each holding one
// and waiting for the next, so that every lock waits: two waits and two wakes; read, write: 16 KiB
// of a file in memory.
#include "batches.h"

#include <sys/mman.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t round_mutexes[] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
					  PTHREAD_MUTEX_INITIALIZER};

static NOIPA void call_mutex(void)
{
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	KEEP_FRAME();
}

static NOIPA void call_rdlock(void)
{
	pthread_rwlock_rdlock(&rwlock);
	pthread_rwlock_unlock(&rwlock);
	KEEP_FRAME();
}

static NOIPA void call_wrlock(void)
{
	pthread_rwlock_wrlock(&rwlock);
	pthread_rwlock_unlock(&rwlock);
	KEEP_FRAME();
}

static NOIPA void call_signal(void)
{
	pthread_cond_signal(&cond);
	KEEP_FRAME();
}

static void step(unsigned int *held)
{
	unsigned int next = (*held + 1) % 3;

	pthread_mutex_lock(&round_mutexes[next]);
	pthread_mutex_unlock(&round_mutexes[*held]);
	*held = next;
}

static NOIPA void *chaser_main(void *arg)
{
	unsigned int held = 1;

	pthread_mutex_lock(&round_mutexes[held]);
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	for (;;)
		step(&held);
	return NULL;
}

static NOIPA void call_pass(void)
{
	static unsigned int held;

	step(&held);
	KEEP_FRAME();
}

static void start_chaser(void)
{
	// A thread of this class does not take the CPU from the one that wakes it, which so
	// comes to its own wait (sched(7)).
	struct sched_param priority = {0};
	int tid = 0;

	batches_stay_here();
	if (sched_setscheduler(0, SCHED_BATCH, &priority))
		target_die("sched_setscheduler");
	pthread_mutex_lock(&round_mutexes[0]);
	pthread_detach(target_thread(chaser_main, &tid, 65536));
	target_wait_blocked(target_wait_set(&tid), SYS_futex, (uintptr_t)round_mutexes,
			    (uintptr_t)round_mutexes + sizeof(round_mutexes));
}

static int file;
static char block[16384];

static NOIPA void call_read(void)
{
	if (pread(file, block, sizeof(block), 0) != sizeof(block))
		target_die("pread");
	KEEP_FRAME();
}

static NOIPA void call_write(void)
{
	if (pwrite(file, block, sizeof(block), 0) != sizeof(block))
		target_die("pwrite");
	KEEP_FRAME();
}

// In memory: no such call blocks.
static void make_file(void)
{
	file = memfd_create("transfers", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, sizeof(block)))
		target_die("memfd_create");
}

static const struct batch_kind kinds[] = {
	{"mutex", call_mutex, 2000, 0},	  {"rdlock", call_rdlock, 2000, 0},
	{"wrlock", call_wrlock, 2000, 0}, {"signal", call_signal, 2000, 0},
	{"pass", call_pass, 200, 0},	  {"read", call_read, 200, 0},
	{"write", call_write, 200, 0},
};

static void answer(const char *command)
{
	batches_answer(kinds, sizeof(kinds) / sizeof(kinds[0]), CLOCK_PROCESS_CPUTIME_ID, command);
}

int main(void)
{
	make_file();
	start_chaser();
	target_ready();
	target_serve(answer);
}

// SPDX-License-Identifier: Apache-2.0
// locks: threads that wait for every kind of lock, each held by a thread that is known. Prints a
// fact per waiter: its tid, the kind of lock, the tid of its owner or null, how many readers are
// inside (rwlocks), and the global variable, or null where it is none.
#include "target.h"

#include <linux/futex.h>
#include <semaphore.h>

struct object {
	const char *kind;
	const char *symbol; // NULL: on the heap
	void *address;
	size_t size;
};

struct actor {
	void (*act)(void *object);
	void *object;
	int tid;
	pthread_t thread;
};

pthread_mutex_t lock_plain = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t lock_recursive, lock_errorcheck, lock_adaptive, lock_robust, lock_inherit,
	lock_robust_inherit, lock_shared;
pthread_mutex_t lock_self = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t lock_ring_a = PTHREAD_MUTEX_INITIALIZER, lock_ring_b = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t ring_closed;
struct {
	long before;
	pthread_mutex_t mutex;
} lock_inside = {.mutex = PTHREAD_MUTEX_INITIALIZER};
pthread_rwlock_t rwlock_written = PTHREAD_RWLOCK_INITIALIZER;
pthread_rwlock_t rwlock_read = PTHREAD_RWLOCK_INITIALIZER;
pthread_rwlock_t rwlock_fair = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
pthread_rwlock_t rwlock_self = PTHREAD_RWLOCK_INITIALIZER;
pthread_cond_t cond_plain = PTHREAD_COND_INITIALIZER, cond_timed = PTHREAD_COND_INITIALIZER;
pthread_mutex_t cond_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cond_back = PTHREAD_COND_INITIALIZER;
pthread_mutex_t cond_back_mutex = PTHREAD_MUTEX_INITIALIZER;
sem_t sem_empty;
int word_own = 7;

static void stay(void)
{
	for (;;)
		pause();
}

static void lock_mutex(void *object)
{
	pthread_mutex_lock(object);
}

static void lock_mutex_twice(void *object)
{
	pthread_mutex_lock(object);
	pthread_mutex_lock(object);
}

static void lock_read(void *object)
{
	pthread_rwlock_rdlock(object);
}

static void lock_write(void *object)
{
	pthread_rwlock_wrlock(object);
}

static void lock_read_then_write(void *object)
{
	pthread_rwlock_rdlock(object);
	pthread_rwlock_wrlock(object);
}

static void wait_cond(void *object)
{
	pthread_mutex_lock(&cond_mutex);
	pthread_cond_wait(object, &cond_mutex);
}

static void wait_cond_timed(void *object)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 86400;
	pthread_mutex_lock(&cond_mutex);
	pthread_cond_timedwait(object, &cond_mutex, &until);
}

// Is woken, and then waits for the mutex inside pthread_cond_wait.
static void wait_cond_back(void *object)
{
	pthread_mutex_lock(&cond_back_mutex);
	pthread_cond_wait(object, &cond_back_mutex);
}

static void wait_sem(void *object)
{
	sem_wait(object);
}

static void join(void *object)
{
	pthread_join(*(pthread_t *)object, NULL);
}

static void wait_own(void *object)
{
	syscall(SYS_futex, object, FUTEX_WAIT_PRIVATE, 7, NULL);
}

static void *actor_main(void *arg)
{
	struct actor *actor = arg;

	__atomic_store_n(&actor->tid, gettid(), __ATOMIC_RELEASE);
	actor->act(actor->object);
	stay();
	return NULL;
}

static struct actor *start(void (*act)(void *), void *object)
{
	struct actor *actor = calloc(1, sizeof(*actor));

	if (!actor)
		target_die("calloc");
	actor->act = act;
	actor->object = object;
	actor->thread = target_thread(actor_main, actor, 65536);
	target_wait_set(&actor->tid);
	return actor;
}

// Has the lock when this returns.
static struct actor *hold(void (*act)(void *), void *object)
{
	struct actor *actor = start(act, object);

	target_wait_blocked(actor->tid, SYS_pause, 0, 0);
	return actor;
}

static void print_fact(const struct actor *actor, const struct object *object, int owner,
		       int readers)
{
	uintptr_t address = (uintptr_t)object->address;

	target_wait_blocked(actor->tid, SYS_futex, address, address + object->size);
	printf("{\"fact\":\"lock\",\"tid\":%d,\"kind\":\"%s\",\"address\":\"%#lx\"", actor->tid,
	       object->kind, (unsigned long)address);
	if (owner)
		printf(",\"owner\":%d", owner);
	else
		printf(",\"owner\":null");
	if (readers >= 0)
		printf(",\"readers\":%d", readers);
	else
		printf(",\"readers\":null");
	if (object->symbol)
		printf(",\"symbol\":\"%s\"}\n", object->symbol);
	else
		printf(",\"symbol\":null}\n");
}

#define OBJECT(kind, name) (&(struct object){kind, #name, &name, sizeof(name)})

static void wait_for(void (*act)(void *), const struct object *object, int owner, int readers)
{
	print_fact(start(act, object->address), object, owner, readers);
}

static void init_mutex(pthread_mutex_t *mutex, int type, int robust, int protocol, int shared)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	errno = pthread_mutexattr_settype(&attr, type);
	if (!errno && robust)
		errno = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	if (!errno)
		errno = pthread_mutexattr_setprotocol(&attr, protocol);
	if (!errno && shared)
		errno = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	if (!errno)
		errno = pthread_mutex_init(mutex, &attr);
	if (errno)
		target_die("pthread_mutex_init");
}

static void contend_mutex(const struct object *object, int waiters)
{
	int owner = hold(lock_mutex, object->address)->tid;

	for (int i = 0; i < waiters; i++)
		wait_for(lock_mutex, object, owner, -1);
}

static void contend_mutexes(void)
{
	pthread_mutex_t *heap = calloc(1, sizeof(*heap));

	if (!heap)
		target_die("calloc");
	init_mutex(&lock_recursive, PTHREAD_MUTEX_RECURSIVE, 0, PTHREAD_PRIO_NONE, 0);
	init_mutex(&lock_errorcheck, PTHREAD_MUTEX_ERRORCHECK, 0, PTHREAD_PRIO_NONE, 0);
	init_mutex(&lock_adaptive, PTHREAD_MUTEX_ADAPTIVE_NP, 0, PTHREAD_PRIO_NONE, 0);
	init_mutex(&lock_robust, PTHREAD_MUTEX_NORMAL, 1, PTHREAD_PRIO_NONE, 0);
	init_mutex(&lock_inherit, PTHREAD_MUTEX_NORMAL, 0, PTHREAD_PRIO_INHERIT, 0);
	init_mutex(&lock_robust_inherit, PTHREAD_MUTEX_NORMAL, 1, PTHREAD_PRIO_INHERIT, 0);
	init_mutex(&lock_shared, PTHREAD_MUTEX_NORMAL, 0, PTHREAD_PRIO_NONE, 1);
	contend_mutex(OBJECT("mutex", lock_plain), 3);
	contend_mutex(OBJECT("mutex", lock_recursive), 2);
	contend_mutex(OBJECT("mutex", lock_errorcheck), 1);
	contend_mutex(OBJECT("mutex", lock_adaptive), 1);
	contend_mutex(OBJECT("mutex", lock_robust), 2);
	contend_mutex(OBJECT("mutex", lock_inherit), 2);
	contend_mutex(OBJECT("mutex", lock_robust_inherit), 1);
	contend_mutex(OBJECT("mutex", lock_shared), 1);
	contend_mutex(&(struct object){"mutex", NULL, heap, sizeof(*heap)}, 1);
	contend_mutex(&(struct object){"mutex", "lock_inside+0x8", &lock_inside.mutex,
				       sizeof(lock_inside.mutex)},
		      1);
}

// Takes its own, and then the other, which the second thread has by then.
static void lock_ring(void *object)
{
	pthread_mutex_lock(object);
	pthread_barrier_wait(&ring_closed);
	pthread_mutex_lock(object == &lock_ring_a ? &lock_ring_b : &lock_ring_a);
}

static void deadlock(void)
{
	pthread_barrier_init(&ring_closed, NULL, 2);
	struct actor *self = start(lock_mutex_twice, &lock_self);
	struct actor *a = start(lock_ring, &lock_ring_a), *b = start(lock_ring, &lock_ring_b);

	print_fact(self, OBJECT("mutex", lock_self), self->tid, -1);
	print_fact(a, OBJECT("mutex", lock_ring_b), b->tid, -1);
	print_fact(b, OBJECT("mutex", lock_ring_a), a->tid, -1);
	wait_for(lock_read_then_write, OBJECT("rwlock", rwlock_self), 0, 1);
}

static void contend_rwlocks(void)
{
	int writer = hold(lock_write, &rwlock_written)->tid;

	wait_for(lock_read, OBJECT("rwlock", rwlock_written), writer, 0);
	wait_for(lock_read, OBJECT("rwlock", rwlock_written), writer, 0);
	wait_for(lock_write, OBJECT("rwlock", rwlock_written), writer, 0);

	hold(lock_read, &rwlock_read);
	hold(lock_read, &rwlock_read);
	wait_for(lock_write, OBJECT("rwlock", rwlock_read), 0, 2);
	wait_for(lock_write, OBJECT("rwlock", rwlock_read), 0, 2);

	// A reader behind a writer that waits.
	hold(lock_read, &rwlock_fair);
	wait_for(lock_write, OBJECT("rwlock", rwlock_fair), 0, 1);
	wait_for(lock_read, OBJECT("rwlock", rwlock_fair), 0, 1);
}

static void wait_conds(void)
{
	wait_for(wait_cond, OBJECT("cond", cond_plain), 0, -1);
	wait_for(wait_cond, OBJECT("cond", cond_plain), 0, -1);
	wait_for(wait_cond_timed, OBJECT("cond", cond_timed), 0, -1);

	struct actor *back = start(wait_cond_back, &cond_back);
	uintptr_t word = (uintptr_t)&cond_back;
	target_wait_blocked(back->tid, SYS_futex, word, word + sizeof(cond_back));
	int owner = hold(lock_mutex, &cond_back_mutex)->tid;
	pthread_cond_signal(&cond_back);
	print_fact(back, OBJECT("mutex", cond_back_mutex), owner, -1);
}

static void wait_others(void)
{
	struct actor *joined = hold(lock_mutex, calloc(1, sizeof(pthread_mutex_t)));
	struct actor *joiner = start(join, &joined->thread);

	sem_init(&sem_empty, 0, 0);
	wait_for(wait_sem, OBJECT("sem", sem_empty), 0, -1);
	wait_for(wait_own, OBJECT("unknown", word_own), 0, -1);
	// The word is in libc's struct pthread, which pthread_t points to.
	print_fact(joiner, &(struct object){"join", NULL, (void *)joined->thread, 4096},
		   joined->tid, -1);
}

int main(void)
{
	target_wait_first();
	contend_mutexes();
	deadlock();
	contend_rwlocks();
	wait_conds();
	wait_others();
	target_ready();
	target_serve(NULL);
}

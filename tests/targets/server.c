// SPDX-License-Identifier: Apache-2.0
// server: waits as a database server does, in functions that are called as its own are. One command
// makes one thread wait; it answers once that thread is asleep in its wait.
//
//   mutex | rwlock    for an InnoDB latch, in the two steps that MySQL takes
//   row               for a row, and before that, in the same call, for a mutex that it gets
//   inner             for that mutex, which it does not get
//   metadata          for a metadata lock
//   reserve           for something else, after it has found a latch free at the last moment
//   deadlock          no wait: a victim is chosen
//   storm N | step N  N calls that wait for nothing; the second kind begins with an instruction
//                     that the kernel cannot emulate
//   release           ends the wait
//
// The structures are laid out as those of MySQL 5.5.9.
#include "target.h"

#include <linux/futex.h>
#include <stddef.h>

static int word, mutex_word; // 0: wait
static int tid;

static NOIPA void sleep_on(int *futex)
{
	while (!__atomic_load_n(futex, __ATOMIC_ACQUIRE)) {
		syscall(SYS_futex, futex, FUTEX_WAIT_PRIVATE, 0, NULL);
		KEEP_FRAME();
	}
}

static struct mutex {
	void *event;
	char lock_word;
	unsigned long waiters;
	void *list[2];
	const char *file;
	unsigned long line, count;
	void *psi;
} mutex = {.file = "/home/build/storage/innobase/srv/srv0srv.c", .line = 1020};

static struct rwlock {
	unsigned long words[10];
	const char *file, *last_s_file, *last_x_file;
	unsigned long writer_waits;
	unsigned line : 14, last_s_line : 14;
	unsigned last_x_line : 14;
} rwlock = {.file = "dict/dict0dict.c", .line = 1762};

static struct table {
	unsigned long id;
	void *heap;
	const char *name, *table_name;
} index_of_t1 = {.name = "PRIMARY", .table_name = "test/t1"};

struct transaction {
	unsigned long words[77];
	struct lock *wait_lock;
};

static struct lock {
	struct transaction *transaction;
	void *list[2];
	unsigned long mode;
	void *hash;
	struct table *index;
	unsigned long space, page, bits;
	unsigned char bitmap[16];
} row_lock = {.mode = 256 | 32 | 3,
	      .index = &index_of_t1,
	      .space = 7,
	      .page = 4,
	      .bits = 72,
	      .bitmap = {0, 1 << 2}};

static struct transaction transaction = {.wait_lock = &row_lock};
static struct fork {
	unsigned long words[10];
	struct transaction *transaction;
} graph = {.transaction = &transaction};
static struct thread {
	unsigned long words[9];
	struct fork *graph;
} query_thread = {.graph = &graph};

static struct mdl_lock {
	void *methods;
	unsigned short length, schema_length;
	char name[500];
} mdl_lock = {.schema_length = 4, .name = "\2test\0t1"};
static struct ticket {
	unsigned long words[6];
	struct context *context;
	struct mdl_lock *lock;
} ticket = {.lock = &mdl_lock};
static struct context {
	unsigned long words[33];
	struct ticket *waiting_for;
} context = {.waiting_for = &ticket};

_Static_assert(offsetof(struct rwlock, writer_waits) == 104, "rw_lock_struct");
_Static_assert(offsetof(struct transaction, wait_lock) == 616, "trx_struct");
_Static_assert(offsetof(struct lock, bitmap) == 72, "lock_struct");

// Nothing but the names of these functions is the servers'.
NOIPA void sync_array_reserve_cell(void *array, void *object, unsigned long type, const char *file,
				   unsigned long line, unsigned long *index);
NOIPA void sync_array_wait_event(void *array, int *futex);
NOIPA void srv_suspend_mysql_thread(struct thread *thread);
NOIPA unsigned long trx_weight_ge(const void *a, const void *b);
NOIPA int timed_wait(struct context *context,
		     void *owner) __asm__("_ZN8MDL_wait10timed_waitEP3THDP8timespecbPKc");
NOIPA void sync_array_free_cell(void *array, unsigned long index);
NOIPA void lock_wait(void *thread) __asm__("_Z9lock_waitP9que_thr_t");
NOIPA void wait_and_lock(void *lock) __asm__("_ZN14srw_mutex_implILb1EE13wait_and_lockEv");

void sync_array_reserve_cell(void *array, void *object, unsigned long type, const char *file,
			     unsigned long line, unsigned long *index)
{
	*index = type;
	KEEP_FRAME();
}

void sync_array_wait_event(void *array, int *futex)
{
	sleep_on(futex);
	KEEP_FRAME();
}

static NOIPA void wait_for_latch(void *latch, unsigned long type, int *futex)
{
	unsigned long index;

	sync_array_reserve_cell(NULL, latch, type, "row0sel.c", 3, &index);
	sync_array_wait_event(NULL, futex);
	KEEP_FRAME();
}

void srv_suspend_mysql_thread(struct thread *thread)
{
	wait_for_latch(&mutex, 354, &mutex_word);
	sleep_on(&word);
	KEEP_FRAME();
}

int timed_wait(struct context *waiter, void *owner)
{
	sleep_on(&word);
	KEEP_FRAME();
	return waiter != owner;
}

unsigned long trx_weight_ge(const void *a, const void *b)
{
	return a != b;
}

void sync_array_free_cell(void *array, unsigned long index)
{
	KEEP_FRAME();
}

// A register that must be saved: the first instruction is a push.
void lock_wait(void *thread)
{
	__asm__ volatile("" ::: "rbx", "memory");
}

// The first instruction is the return.
void wait_and_lock(void *lock)
{
	KEEP_FRAME();
}

static NOIPA void find_free(void)
{
	unsigned long index;

	sync_array_reserve_cell(NULL, &mutex, 354, "row0sel.c", 3, &index);
	sync_array_free_cell(NULL, index);
	KEEP_FRAME();
}

static void *waiter(void *arg)
{
	const char *command = arg;

	__atomic_store_n(&tid, gettid(), __ATOMIC_RELEASE);
	if (strcmp(command, "mutex") == 0)
		wait_for_latch(&mutex, 354, &word);
	else if (strcmp(command, "rwlock") == 0)
		wait_for_latch(&rwlock, 352, &word);
	else if (strcmp(command, "row") == 0 || strcmp(command, "inner") == 0)
		srv_suspend_mysql_thread(&query_thread);
	else if (strcmp(command, "metadata") == 0)
		timed_wait(&context, NULL);
	else if (strcmp(command, "reserve") == 0)
		find_free();
	if (strcmp(command, "reserve") == 0)
		sleep_on(&word);
	return NULL;
}

static pthread_t thread;

static void make_wait(const char *command)
{
	static char name[16];
	int is_row = strcmp(command, "row") == 0, is_inner = strcmp(command, "inner") == 0;
	int *first = is_row || is_inner ? &mutex_word : &word;

	snprintf(name, sizeof(name), "%s", command);
	word = mutex_word = tid = 0;
	thread = target_thread(waiter, name, 0);
	target_wait_blocked(target_wait_set(&tid), SYS_futex, (uintptr_t)first,
			    (uintptr_t)(first + 1));
	if (is_row) {
		__atomic_store_n(&mutex_word, 1, __ATOMIC_RELEASE);
		syscall(SYS_futex, &mutex_word, FUTEX_WAKE_PRIVATE, 1);
		target_wait_blocked(tid, SYS_futex, (uintptr_t)&word, (uintptr_t)(&word + 1));
	}
	printf("{\"tid\": %d}\n", tid);
}

static void release(void)
{
	__atomic_store_n(&mutex_word, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&word, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &mutex_word, FUTEX_WAKE_PRIVATE, 1);
	syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
	pthread_join(thread, NULL);
	printf("{}\n");
}

static uint64_t cpu_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void storm(void (*function)(void *arg), unsigned long count)
{
	uint64_t start = cpu_now();

	for (unsigned long i = 0; i < count; i++)
		function(NULL);
	printf("{\"ns\": %llu}\n", (unsigned long long)(cpu_now() - start));
}

static void answer(const char *command)
{
	if (strcmp(command, "release") == 0) {
		release();
	} else if (strcmp(command, "deadlock") == 0) {
		printf("{\"victim\": %lu}\n", trx_weight_ge(&transaction, &graph));
	} else if (strncmp(command, "storm ", 6) == 0) {
		storm(lock_wait, strtoul(command + 6, NULL, 10));
	} else if (strncmp(command, "step ", 5) == 0) {
		storm(wait_and_lock, strtoul(command + 5, NULL, 10));
	} else {
		make_wait(command);
	}
}

int main(void)
{
	row_lock.transaction = &transaction;
	ticket.context = &context;
	printf("{\"mutex\": %lu, \"rwlock\": %lu, \"row\": %lu, \"metadata\": %lu, "
	       "\"transaction\": %lu, \"graph\": %lu}\n",
	       (unsigned long)&mutex, (unsigned long)&rwlock, (unsigned long)&row_lock,
	       (unsigned long)&mdl_lock, (unsigned long)&transaction, (unsigned long)&graph);
	target_ready();
	target_serve(answer);
}

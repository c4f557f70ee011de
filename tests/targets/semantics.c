// SPDX-License-Identifier: Apache-2.0
// semantics FOLDER [staged]: prints what every call that the in-process library interposes returns,
// and what it leaves in errno, in the cases that distinguish kinds of locks. To be run with the
// library and without, and compared. Ends by itself. Staged: with the library, a thread that waits
// by stages has checked its lock once before the lock is released.
#include "target.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define UNTOUCHED 12345
#define LONG_NS 30000000 // a wait through more than one stage of patience

static void report(const char *what, long result)
{
	int left = errno;

	printf("%s=%ld", what, result);
	if (left != UNTOUCHED)
		printf(" errno %d", left);
	printf("\n");
}

#define REPORT(call)                                                                               \
	do {                                                                                       \
		errno = UNTOUCHED;                                                                 \
		report(#call, (long)(call));                                                       \
	} while (0)

#if __GLIBC_PREREQ(2, 30)
#define REPORT_CLOCK(call) REPORT(call)
#else
#define REPORT_CLOCK(call) (void)monotonic
#endif

static void run(void *(*function)(void *), void *arg)
{
	pthread_join(target_thread(function, arg, 0), NULL);
}

/* A thread that has a lock until the main thread sleeps for it. */

struct holder {
	int (*take)(void *), (*give)(void *); // give NULL: it ends and keeps it
	void *object;
	size_t size;
	bool in_one_piece; // is it waited for, also with the library
	pid_t waiter;
	int has_it;
};
static bool staged;

static void *hold(void *arg)
{
	struct holder *holder = arg;
	struct timespec nap = {.tv_nsec = LONG_NS};

	holder->take(holder->object);
	__atomic_store_n(&holder->has_it, 1, __ATOMIC_RELEASE);
	uintptr_t low = (uintptr_t)holder->object, high = low + holder->size;
	target_wait_blocked(holder->waiter, SYS_futex, low, high);
	if (staged && !holder->in_one_piece)
		target_wait_blocked_again(holder->waiter, SYS_futex, low, high);
	nanosleep(&nap, NULL);
	if (holder->give)
		holder->give(holder->object);
	return NULL;
}

static pthread_t start_holder(struct holder *holder)
{
	pthread_t thread;

	holder->waiter = gettid();
	holder->has_it = 0;
	thread = target_thread(hold, holder, 0);
	target_wait_set(&holder->has_it);
	return thread;
}

/* Mutexes */

static const struct mutex_kind {
	const char *name;
	int type, protocol, robust, shared;
} mutex_kinds[] = {
	{"normal", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 0, 0},
	{"adaptive", PTHREAD_MUTEX_ADAPTIVE_NP, PTHREAD_PRIO_NONE, 0, 0},
	{"recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE, 0, 0},
	{"errorcheck", PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE, 0, 0},
	{"shared", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 0, 1},
	{"robust", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 1, 0},
	{"robust recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE, 1, 0},
	{"robust errorcheck", PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE, 1, 0},
	{"robust shared", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 1, 1},
	{"inherit", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 0, 0},
	{"inherit recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_INHERIT, 0, 0},
	{"inherit errorcheck", PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_INHERIT, 0, 0},
	{"inherit robust", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 1, 0},
	{"inherit robust recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_INHERIT, 1, 0},
	{"protect", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_PROTECT, 0, 0},
	{"protect recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_PROTECT, 0, 0},
	{"protect errorcheck", PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_PROTECT, 0, 0},
};

static pthread_mutex_t *mutex; // one after the other, shared with children

static int take_mutex(void *object)
{
	return pthread_mutex_lock(object);
}

static int give_mutex(void *object)
{
	return pthread_mutex_unlock(object);
}

static void make_mutex(const struct mutex_kind *kind)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, kind->type);
	pthread_mutexattr_setprotocol(&attr, kind->protocol);
	if (kind->protocol == PTHREAD_PRIO_PROTECT)
		pthread_mutexattr_setprioceiling(&attr, 2);
	pthread_mutexattr_setrobust(&attr,
				    kind->robust ? PTHREAD_MUTEX_ROBUST : PTHREAD_MUTEX_STALLED);
	pthread_mutexattr_setpshared(&attr, kind->shared ? PTHREAD_PROCESS_SHARED
							 : PTHREAD_PROCESS_PRIVATE);
	memset(mutex, 0, sizeof(*mutex));
	REPORT(pthread_mutex_init(mutex, &attr));
	pthread_mutexattr_destroy(&attr);
}

static void *be_another_thread(void *arg)
{
	const struct mutex_kind *kind = arg;
	struct timespec wall = target_after(CLOCK_REALTIME, 1000000);
	struct timespec monotonic = target_after(CLOCK_MONOTONIC, 1000000);
	struct timespec bad = {.tv_sec = wall.tv_sec + 60, .tv_nsec = 1000000000};
	struct timespec past = {.tv_sec = -1};

	REPORT(pthread_mutex_trylock(mutex));
	REPORT(pthread_mutex_timedlock(mutex, &wall));
	REPORT(pthread_mutex_timedlock(mutex, &bad));
	REPORT(pthread_mutex_timedlock(mutex, &past));
	REPORT_CLOCK(pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &monotonic));
	REPORT_CLOCK(pthread_mutex_clocklock(mutex, CLOCK_THREAD_CPUTIME_ID, &monotonic));
	if (kind->type != PTHREAD_MUTEX_NORMAL && kind->type != PTHREAD_MUTEX_ADAPTIVE_NP)
		REPORT(pthread_mutex_unlock(mutex));
	return NULL;
}

static void *lock_and_die(void *arg)
{
	REPORT(pthread_mutex_lock(mutex));
	return NULL;
}

static void try_deaths(const struct mutex_kind *kind)
{
	struct holder holder = {.take = take_mutex,
				.object = mutex,
				.size = sizeof(*mutex),
				.in_one_piece = true};
	pthread_t thread;

	run(lock_and_die, NULL);
	REPORT(pthread_mutex_lock(mutex));
	REPORT(pthread_mutex_consistent(mutex));
	REPORT(pthread_mutex_unlock(mutex));
	thread = start_holder(&holder); // dies while this thread waits
	REPORT(pthread_mutex_lock(mutex));
	pthread_join(thread, NULL);
	REPORT(pthread_mutex_consistent(mutex));
	REPORT(pthread_mutex_unlock(mutex));
	if (kind->shared) {
		fflush(stdout);
		pid_t child = fork();

		if (!child)
			_exit(pthread_mutex_lock(mutex));
		waitpid(child, NULL, 0);
		REPORT(pthread_mutex_lock(mutex));
		REPORT(pthread_mutex_consistent(mutex));
		REPORT(pthread_mutex_unlock(mutex));
	}
	run(lock_and_die, NULL);
	struct timespec wall = target_after(CLOCK_REALTIME, 1000000);
	REPORT(pthread_mutex_timedlock(mutex, &wall));
	REPORT(pthread_mutex_unlock(mutex));
	REPORT(pthread_mutex_lock(mutex));
	REPORT(pthread_mutex_trylock(mutex));
	REPORT(pthread_mutex_timedlock(mutex, &wall));
}

static void try_mutex(const struct mutex_kind *kind)
{
	struct holder holder = {.take = take_mutex,
				.give = give_mutex,
				.object = mutex,
				.size = sizeof(*mutex),
				.in_one_piece =
					kind->robust || kind->protocol != PTHREAD_PRIO_NONE};
	pthread_t thread;

	printf("mutex %s\n", kind->name);
	make_mutex(kind);
	REPORT(pthread_mutex_lock(mutex));
	if (kind->type != PTHREAD_MUTEX_NORMAL && kind->type != PTHREAD_MUTEX_ADAPTIVE_NP) {
		REPORT(pthread_mutex_lock(mutex));
		if (kind->type == PTHREAD_MUTEX_RECURSIVE) {
			unsigned count = mutex->__data.__count;

			mutex->__data.__count = ~0U;
			REPORT(pthread_mutex_lock(mutex));
			mutex->__data.__count = count;
			REPORT(pthread_mutex_unlock(mutex));
		}
	} else if (kind->protocol == PTHREAD_PRIO_NONE) {
		struct timespec wall = target_after(CLOCK_REALTIME, 1000000);

		REPORT(pthread_mutex_timedlock(mutex, &wall));
	}
	run(be_another_thread, (void *)kind);
	REPORT(pthread_mutex_unlock(mutex));
	if (kind->type != PTHREAD_MUTEX_NORMAL && kind->type != PTHREAD_MUTEX_ADAPTIVE_NP)
		REPORT(pthread_mutex_unlock(mutex));
	struct timespec bad = {.tv_nsec = -1};
	REPORT(pthread_mutex_timedlock(mutex, &bad)); // is not read
	REPORT(pthread_mutex_unlock(mutex));
	// Of a thread without a real-time priority this kind cannot be locked.
	if (kind->protocol != PTHREAD_PRIO_PROTECT || sched_getscheduler(0) == SCHED_FIFO) {
		thread = start_holder(&holder);
		REPORT(pthread_mutex_lock(mutex));
		REPORT(pthread_mutex_unlock(mutex));
		pthread_join(thread, NULL);
	}
	if (kind->robust)
		try_deaths(kind);
	printf("owner %d users %u kind %d\n", mutex->__data.__owner, mutex->__data.__nusers,
	       mutex->__data.__kind);
	REPORT(pthread_mutex_destroy(mutex));
}

static void try_mutexes(void)
{
	struct sched_param ordinary = {0}, real_time = {.sched_priority = 1};

	for (size_t i = 0; i < sizeof(mutex_kinds) / sizeof(mutex_kinds[0]); i++) {
		const struct mutex_kind *kind = &mutex_kinds[i];

		if (kind->protocol == PTHREAD_PRIO_PROTECT)
			sched_setscheduler(0, SCHED_FIFO, &real_time);
		try_mutex(kind);
		mutex++;
		sched_setscheduler(0, SCHED_OTHER, &ordinary);
	}
}

static void try_bad_mutex(void)
{
	memset(mutex, 0, sizeof(*mutex));
	mutex->__data.__kind = 13;
	REPORT(pthread_mutex_lock(mutex));
	REPORT(pthread_mutex_trylock(mutex));
	REPORT(pthread_mutex_unlock(mutex));
}

/* Rwlocks */

static int take_read(void *object)
{
	return pthread_rwlock_rdlock(object);
}

static int take_write(void *object)
{
	return pthread_rwlock_wrlock(object);
}

static int give_rwlock(void *object)
{
	return pthread_rwlock_unlock(object);
}

static void *time_out(void *arg)
{
	pthread_rwlock_t *rwlock = arg;
	struct timespec wall = target_after(CLOCK_REALTIME, 1000000);
	struct timespec monotonic = target_after(CLOCK_MONOTONIC, 1000000);
	struct timespec bad = {.tv_sec = wall.tv_sec + 60, .tv_nsec = -1};

	REPORT(pthread_rwlock_tryrdlock(rwlock) == 0 ? pthread_rwlock_unlock(rwlock) : EBUSY);
	REPORT(pthread_rwlock_trywrlock(rwlock));
	REPORT(pthread_rwlock_timedwrlock(rwlock, &wall));
	REPORT(pthread_rwlock_timedwrlock(rwlock, &bad));
	REPORT_CLOCK(pthread_rwlock_clockwrlock(rwlock, CLOCK_MONOTONIC, &monotonic));
	REPORT_CLOCK(pthread_rwlock_clockwrlock(rwlock, CLOCK_PROCESS_CPUTIME_ID, &monotonic));
	REPORT_CLOCK(pthread_rwlock_clockrdlock(rwlock, CLOCK_PROCESS_CPUTIME_ID, &monotonic));
	return NULL;
}

static void *time_out_reading(void *arg)
{
	pthread_rwlock_t *rwlock = arg;
	struct timespec wall = target_after(CLOCK_REALTIME, 1000000);
	struct timespec monotonic = target_after(CLOCK_MONOTONIC, 1000000);

	REPORT(pthread_rwlock_timedrdlock(rwlock, &wall));
	REPORT_CLOCK(pthread_rwlock_clockrdlock(rwlock, CLOCK_MONOTONIC, &monotonic));
	return NULL;
}

static void try_rwlock(pthread_rwlock_t *rwlock, const char *name, int kind)
{
	pthread_rwlockattr_t attr;
	struct holder holder = {.give = give_rwlock, .object = rwlock, .size = sizeof(*rwlock)};
	pthread_t thread;

	printf("rwlock %s\n", name);
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, kind);
	REPORT(pthread_rwlock_init(rwlock, &attr));
	REPORT(pthread_rwlock_rdlock(rwlock));
	REPORT(pthread_rwlock_rdlock(rwlock));
	run(time_out, rwlock);
	REPORT(pthread_rwlock_unlock(rwlock));
	REPORT(pthread_rwlock_unlock(rwlock));
	REPORT(pthread_rwlock_wrlock(rwlock));
	REPORT(pthread_rwlock_wrlock(rwlock));
	REPORT(pthread_rwlock_rdlock(rwlock));
	struct timespec wall = target_after(CLOCK_REALTIME, 1000000);
	REPORT(pthread_rwlock_timedrdlock(rwlock, &wall));
	run(time_out_reading, rwlock);
	run(time_out, rwlock);
	REPORT(pthread_rwlock_unlock(rwlock));
	holder.take = take_write;
	thread = start_holder(&holder);
	REPORT(pthread_rwlock_rdlock(rwlock));
	REPORT(pthread_rwlock_unlock(rwlock));
	pthread_join(thread, NULL);
	holder.in_one_piece = kind == PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP;
	thread = start_holder(&holder);
	REPORT(pthread_rwlock_wrlock(rwlock));
	REPORT(pthread_rwlock_unlock(rwlock));
	pthread_join(thread, NULL);
	holder.take = take_read;
	thread = start_holder(&holder);
	REPORT(pthread_rwlock_wrlock(rwlock));
	REPORT(pthread_rwlock_unlock(rwlock));
	pthread_join(thread, NULL);
	REPORT(pthread_rwlock_destroy(rwlock));
}

/* Conditions */

static void try_conds(void)
{
	static const struct mutex_kind errorcheck = {"", PTHREAD_MUTEX_ERRORCHECK, 0, 0, 0};
	static const struct mutex_kind recursive = {"", PTHREAD_MUTEX_RECURSIVE, 0, 0, 0};
	struct timespec wall = target_after(CLOCK_REALTIME, 1000000);
	struct timespec monotonic = target_after(CLOCK_MONOTONIC, 1000000);
	struct timespec bad = {.tv_nsec = 1000000000};
	pthread_condattr_t attr;
	pthread_cond_t cond;

	printf("conditions\n");
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	REPORT(pthread_cond_init(&cond, &attr));
	make_mutex(&errorcheck);
	REPORT(pthread_cond_wait(&cond, mutex)); // of nobody
	REPORT(pthread_cond_timedwait(&cond, mutex, &monotonic));
	REPORT(pthread_mutex_lock(mutex));
	REPORT(pthread_cond_timedwait(&cond, mutex, &monotonic));
	REPORT(pthread_cond_timedwait(&cond, mutex, &bad));
	REPORT_CLOCK(pthread_cond_clockwait(&cond, mutex, CLOCK_REALTIME, &wall));
	REPORT_CLOCK(pthread_cond_clockwait(&cond, mutex, CLOCK_MONOTONIC, &monotonic));
	REPORT_CLOCK(pthread_cond_clockwait(&cond, mutex, CLOCK_THREAD_CPUTIME_ID, &monotonic));
	REPORT(pthread_mutex_unlock(mutex));
	make_mutex(&recursive);
	REPORT(pthread_mutex_lock(mutex));
	REPORT(pthread_mutex_lock(mutex));
	REPORT(pthread_cond_timedwait(&cond, mutex, &monotonic));
	REPORT(pthread_mutex_unlock(mutex));
	REPORT(pthread_mutex_unlock(mutex));
	REPORT(pthread_cond_signal(&cond));
	REPORT(pthread_cond_broadcast(&cond));
	REPORT(pthread_cond_destroy(&cond));
}

/* Files */

#define BLOCK 65536

static void try_files(void)
{
	char *buffer = calloc(1, 2 * BLOCK);
	struct iovec vector[2] = {{buffer, BLOCK}, {buffer + BLOCK, BLOCK}};
	int fd = open("file", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int reader = open("file", O_RDONLY | O_CLOEXEC), ends[2];

	if (!buffer || fd < 0 || reader < 0 || pipe(ends))
		target_die("open");
	int out = ends[1], gone = 4242;
	// Known to the compiler they would be complained about.
	void *volatile nothing = NULL, *volatile nowhere = (void *)8;
	volatile int negative = -1;
	printf("files\n");
	REPORT(fsync(fd));
	REPORT(fsync(out));
	REPORT(fsync(gone));
	REPORT(fdatasync(fd));
	REPORT(fdatasync(gone));
	REPORT(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
	REPORT(sync_file_range(out, 0, 0, SYNC_FILE_RANGE_WRITE));
	REPORT(sync_file_range(fd, 0, 0, 12345));
	REPORT(syncfs(gone));
	REPORT(fallocate(fd, 0, 0, BLOCK));
	REPORT(fallocate(fd, 0, 0, 0));
	REPORT(fallocate(fd, 1 << 20, 0, 1));
	REPORT(fallocate(reader, 0, 0, 1));
	REPORT(posix_fallocate(fd, BLOCK, BLOCK));
	REPORT(posix_fallocate(reader, 0, 1));
	REPORT(posix_fallocate(gone, 0, 1));
	REPORT(posix_fallocate(fd, -1, 1));
	REPORT(posix_fallocate(out, 0, 1));
	REPORT(ftruncate(fd, 100));
	REPORT(ftruncate(fd, -1));
	REPORT(ftruncate(reader, 0));
	REPORT(pwrite(fd, buffer, BLOCK, 0));
	REPORT(pwrite(fd, buffer, BLOCK, BLOCK));
	REPORT(pwrite(fd, buffer, 10, 5));
	REPORT(pwrite(reader, buffer, BLOCK, 0));
	REPORT(pwrite(out, buffer, BLOCK, 0));
	REPORT(pwrite(gone, buffer, BLOCK, 0));
	REPORT(pwrite(fd, nothing, BLOCK, 0));
	REPORT(pwrite(fd, buffer, BLOCK, -1));
	REPORT(pread(fd, buffer, BLOCK, 0));
	REPORT(pread(fd, buffer, BLOCK, BLOCK + 100));
	REPORT(pread(fd, buffer, BLOCK, 1 << 30));
	REPORT(pread(gone, buffer, BLOCK, 0));
	REPORT(pread(fd, nothing, BLOCK, 0));
	REPORT(preadv(fd, vector, 2, 100));
	REPORT(preadv(fd, vector, negative, 0));
	REPORT(preadv(fd, nothing, 2, 0));
	REPORT(pwritev(fd, vector, 2, 100));
	REPORT(pwritev(gone, vector, 2, 100));
	REPORT(pwritev(fd, nowhere, 2, 100));
	void *map = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
	REPORT(msync(map, BLOCK, MS_SYNC));
	REPORT(msync(map, BLOCK, MS_ASYNC));
	REPORT(msync((char *)map + 1, BLOCK, MS_SYNC));
	munmap(map, BLOCK);
	REPORT(msync(map, BLOCK, MS_SYNC));
	REPORT(rename("file", "other"));
	REPORT(rename("file", "other"));
	REPORT(renameat(AT_FDCWD, "other", AT_FDCWD, "file"));
	REPORT(renameat(gone, "other", AT_FDCWD, "file"));
	REPORT(mkdir("folder", 0700));
#if __GLIBC_PREREQ(2, 28)
	REPORT(renameat2(AT_FDCWD, "file", AT_FDCWD, "folder", RENAME_NOREPLACE));
	REPORT(renameat2(AT_FDCWD, "file", AT_FDCWD, "folder", RENAME_EXCHANGE));
	REPORT(renameat2(AT_FDCWD, "file", AT_FDCWD, "folder", 1 << 30));
#endif
	REPORT(unlink("none"));
	REPORT(unlink(nowhere));
	REPORT(rename("folder", nowhere));
	REPORT(rename(nowhere, "folder"));
	REPORT(unlink("folder"));
	REPORT(unlinkat(AT_FDCWD, "file", 0));
	REPORT(unlinkat(AT_FDCWD, "file", AT_REMOVEDIR));
	REPORT(unlinkat(gone, "folder", 0));
	REPORT(unlink("file"));
	free(buffer);
}

// What a pointer leads to may be unreadable altogether, or from a page on.
static void try_bad_pointers(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open("file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	char *buffer = calloc(1, BLOCK);

	if (fd < 0 || !buffer || pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_NONE))
		target_die("mmap");
	struct iovec *hidden = (struct iovec *)(pages + 4096), *edge = hidden - 1;
	char *endless = pages + 4096 - 8;
	*edge = (struct iovec){buffer, BLOCK};
	printf("bad pointers\n");
	REPORT(preadv(fd, hidden, 2, 0));
	REPORT(pwritev(fd, hidden, 2, 0));
	REPORT(pwritev(fd, edge, 1, 0));
	REPORT(pwritev(fd, edge, 2, 0));
	REPORT(preadv(fd, edge, 2, 0));
	memset(endless, 'x', 8);
	REPORT(unlink(pages + 4096));
	REPORT(unlink(endless));
	REPORT(unlinkat(AT_FDCWD, endless, 0));
	REPORT(rename(endless, "file"));
	REPORT(rename("file", endless));
	endless[7] = '\0';
	REPORT(unlink(endless));
	REPORT(unlink("file"));
	munmap(pages, 8192);
	free(buffer);
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc < 2 || chdir(argv[1]))
		target_die("a folder");
	staged = argc > 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (mutex == MAP_FAILED)
		target_die("mmap");
	try_mutexes();
	try_bad_mutex();
	static pthread_rwlock_t rwlocks[3];
	try_rwlock(&rwlocks[0], "reader", PTHREAD_RWLOCK_PREFER_READER_NP);
	try_rwlock(&rwlocks[1], "writer", PTHREAD_RWLOCK_PREFER_WRITER_NP);
	try_rwlock(&rwlocks[2], "writer nonrecursive",
		   PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	try_conds();
	try_files();
	try_bad_pointers();
	return 0;
}

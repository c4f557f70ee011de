// SPDX-License-Identifier: Apache-2.0
// known_waits FOLDER [--waiters N] [--idle N] [--depth N] [--staged 1] [--calm 1]: makes waits on
// request, exactly as many as asked, and reports of each how long it was by its own clock.
//
//   KIND COUNT MS [WAITERS]  mutex, rwlock, sem, cond: WAITERS threads (1) wait for one that keeps
//                            it for MS after the last of them has gone to sleep; COUNT times
//   hold KIND [WAITERS]      the same, and answers while they wait
//   release                  ends that, and answers with the waits
//   OPERATION COUNT [BYTES]  fsync, fdatasync, sync_file_range, msync, syncfs, fallocate,
//                            ftruncate, extend, unlink, rename, write, read; in the main thread
//   again OPERATION ...      the same, in the file that is there: nothing is opened
//
// Staged: a library divides waits for mutexes and rwlocks, so that the waiter can look up. The holder
// counts from when each of them has done so.
//
// Nothing else here sleeps in a futex, but for the idle threads: N on a condition variable, and one
// each on an rwlock and a semaphore (not if calm) and in poll, so many known functions deep. The others meet by
// eventfd.
#include "levels.h"
#include "waits.h"

#include <sys/resource.h>

struct wait_call {
	int tid;
	uint64_t start_ns, end_ns;
	// For a lock: when the waiter was seen asleep, and when the holder released it.
	uint64_t asleep_ns, released_ns;
	// Context switches of the thread meanwhile. A thread that was preempted after its system
	// call and before it read the clock has an involuntary one.
	long voluntary, involuntary;
};

static void call_begin(struct wait_call *call, struct rusage *before)
{
	*call = (struct wait_call){.tid = gettid()};
	getrusage(RUSAGE_THREAD, before);
	call->start_ns = target_now();
}

static void call_end(struct wait_call *call, const struct rusage *before)
{
	struct rusage after;

	call->end_ns = target_now();
	getrusage(RUSAGE_THREAD, &after);
	call->voluntary = after.ru_nvcsw - before->ru_nvcsw;
	call->involuntary = after.ru_nivcsw - before->ru_nivcsw;
}

// What a command has done so far.
static struct wait_call *done;
static size_t done_count, done_capacity;

static void done_add(const struct wait_call *call)
{
	if (done_count == done_capacity) {
		done_capacity = done_capacity ? done_capacity * 2 : 64;
		done = realloc(done, done_capacity * sizeof(*done));
		if (!done)
			target_die("realloc");
	}
	done[done_count++] = *call;
}

static void print_done(void)
{
	printf("\"calls\":[");
	for (size_t i = 0; i < done_count; i++) {
		const struct wait_call *call = &done[i];

		printf("%s{\"tid\":%d,\"start_ns\":%llu,\"length_ns\":%llu,\"asleep_ns\":%llu,"
		       "\"released_ns\":%llu,\"voluntary\":%ld,\"involuntary\":%ld}",
		       i ? "," : "", call->tid, (unsigned long long)call->start_ns,
		       (unsigned long long)(call->end_ns ? call->end_ns - call->start_ns : 0),
		       (unsigned long long)call->asleep_ns, (unsigned long long)call->released_ns,
		       call->voluntary, call->involuntary);
	}
	printf("]}\n");
	done_count = 0;
}

static void post(int event)
{
	if (eventfd_write(event, 1))
		target_die("eventfd_write");
}

static NOIPA void take(int event)
{
	eventfd_t value;

	while (eventfd_read(event, &value))
		if (errno != EINTR)
			target_die("eventfd_read");
}

static int event_create(void)
{
	int event = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);

	if (event < 0)
		target_die("eventfd");
	return event;
}

pthread_mutex_t the_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_rwlock_t the_rwlock = PTHREAD_RWLOCK_INITIALIZER;
pthread_cond_t the_cond = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t the_cond_mutex = PTHREAD_MUTEX_INITIALIZER;
sem_t the_sem;

struct waiter {
	struct wait_call call;
	int tid, go;
};

static bool staged;
static struct waiter *waiters;
static size_t waiter_max = 1, waiter_count;

static struct {
	int tid;
	int go, all_asleep, release, over;
	uint64_t keep_ns; // 0: until release
	uint64_t released_ns;
} holder;
static int waiter_over;

static bool is_divided(const void *object)
{
	return object == &the_mutex || object == &the_rwlock;
}

static NOIPA void keep(const void *object, size_t size)
{
	uintptr_t low = (uintptr_t)object;
	uint64_t until;
	struct timespec ts;

	// Those for a condition go to sleep one after the other: their mutex has no contention.
	bool in_turn = object == &the_cond;

	for (size_t i = 0; !in_turn && i < waiter_count; i++)
		post(waiters[i].go);
	for (size_t i = 0; i < waiter_count; i++) {
		if (in_turn)
			post(waiters[i].go);
		target_wait_blocked(waiters[i].tid, SYS_futex, low, low + size);
		waiters[i].call.asleep_ns = target_now();
	}
	for (size_t i = 0; staged && i < waiter_count && is_divided(object); i++)
		target_wait_blocked_again(waiters[i].tid, SYS_futex, low, low + size);
	if (holder.keep_ns) {
		until = target_now() + holder.keep_ns;
		ts.tv_sec = (time_t)(until / 1000000000u);
		ts.tv_nsec = (long)(until % 1000000000u);
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
			continue;
	} else {
		post(holder.all_asleep);
		take(holder.release);
	}
	holder.released_ns = target_now();
}

// A waiter that has it lets in the next one, so that each of them sleeps exactly once.
#define LOCK(name, object, obtain, wait, give)                                                     \
	static NOIPA void hold_the_##name(void)                                                    \
	{                                                                                          \
		obtain;                                                                            \
		keep(&(object), sizeof(object));                                                   \
		give;                                                                              \
		KEEP_FRAME();                                                                      \
	}                                                                                          \
	static NOIPA void wait_for_the_##name(void)                                                \
	{                                                                                          \
		wait;                                                                              \
		KEEP_FRAME();                                                                      \
	}                                                                                          \
	static NOIPA void pass_on_the_##name(void)                                                 \
	{                                                                                          \
		give;                                                                              \
		KEEP_FRAME();                                                                      \
	}

LOCK(mutex, the_mutex, pthread_mutex_lock(&the_mutex), pthread_mutex_lock(&the_mutex),
     pthread_mutex_unlock(&the_mutex))
LOCK(rwlock, the_rwlock, pthread_rwlock_wrlock(&the_rwlock), pthread_rwlock_rdlock(&the_rwlock),
     pthread_rwlock_unlock(&the_rwlock))
LOCK(sem, the_sem, sem_wait(&the_sem), sem_wait(&the_sem), sem_post(&the_sem))
LOCK(
	cond, the_cond, KEEP_FRAME(),
	{
		pthread_mutex_lock(&the_cond_mutex);
		pthread_cond_wait(&the_cond, &the_cond_mutex);
		pthread_mutex_unlock(&the_cond_mutex);
	},
	pthread_cond_signal(&the_cond))

struct lock_kind {
	const char *name;
	const void *object;
	void (*hold)(void), (*wait)(void), (*pass_on)(void);
};

#define LOCK_KIND(name)                                                                            \
	{                                                                                          \
#name, &the_##name, hold_the_##name, wait_for_the_##name, pass_on_the_##name       \
	}
static const struct lock_kind lock_kinds[] = {
	LOCK_KIND(mutex),
	LOCK_KIND(rwlock),
	LOCK_KIND(sem),
	LOCK_KIND(cond),
};
static const struct lock_kind *lock_kind;
static bool holding;

static const struct lock_kind *find_lock(const char *name)
{
	for (size_t i = 0; i < sizeof(lock_kinds) / sizeof(lock_kinds[0]); i++)
		if (!strcmp(lock_kinds[i].name, name))
			return &lock_kinds[i];
	return NULL;
}

static NOIPA void *holder_main(void *arg)
{
	(void)arg;
	pthread_setname_np(pthread_self(), "holder");
	__atomic_store_n(&holder.tid, gettid(), __ATOMIC_RELEASE);
	for (;;) {
		take(holder.go);
		lock_kind->hold();
		post(holder.over);
	}
	return NULL;
}

static NOIPA void *waiter_main(void *arg)
{
	struct waiter *waiter = arg;
	struct rusage before;

	pthread_setname_np(pthread_self(), "waiter");
	__atomic_store_n(&waiter->tid, gettid(), __ATOMIC_RELEASE);
	for (;;) {
		take(waiter->go);
		call_begin(&waiter->call, &before);
		lock_kind->wait();
		call_end(&waiter->call, &before);
		lock_kind->pass_on();
		post(waiter_over);
	}
	return NULL;
}

static void round_begin(void)
{
	post(holder.go);
}

static void round_end(void)
{
	take(holder.over);
	for (size_t i = 0; i < waiter_count; i++)
		take(waiter_over);
	for (size_t i = 0; i < waiter_count; i++) {
		waiters[i].call.released_ns = holder.released_ns;
		done_add(&waiters[i].call);
	}
}

static void print_lock(void)
{
	printf("{\"operation\":\"%s\",\"address\":\"%#lx\",\"holder\":%d,", lock_kind->name,
	       (unsigned long)(uintptr_t)lock_kind->object, holder.tid);
	print_done();
}

static void lock_rounds(unsigned long count)
{
	for (unsigned long i = 0; i < count; i++) {
		round_begin();
		round_end();
	}
	print_lock();
}

static void lock_hold(void)
{
	holder.keep_ns = 0;
	holding = true;
	round_begin();
	take(holder.all_asleep);
	for (size_t i = 0; i < waiter_count; i++)
		done_add(&waiters[i].call);
	print_lock();
}

static void lock_release(void)
{
	post(holder.release);
	round_end();
	holding = false;
	print_lock();
}

static struct {
	const char *folder;
	char path[512], other[512];
	int fd;
	char *map;
	char *block;
	size_t bytes;
} file;

#define FILLED 65536ul

static void file_open(const char *operation)
{
	if (file.map)
		munmap(file.map, FILLED);
	if (file.fd >= 0)
		close(file.fd);
	snprintf(file.path, sizeof(file.path), "%s/known-%s", file.folder, operation);
	snprintf(file.other, sizeof(file.other), "%s/known-other-%s", file.folder, operation);
	file.fd = open(file.path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file.fd < 0)
		target_die(file.path);
	file.map = NULL;
}

static void write_at(int fd, size_t bytes, off_t at)
{
	if (pwrite(fd, file.block, bytes, at) != (ssize_t)bytes)
		target_die("pwrite");
}

static void before_nothing(unsigned long nr)
{
	(void)nr;
}

static void before_dirty(unsigned long nr)
{
	memset(file.block, (int)('a' + nr % 26), 4096);
	write_at(file.fd, 4096, (off_t)(nr % (FILLED / 4096) * 4096));
}

static void before_mapped(unsigned long nr)
{
	if (!nr) {
		write_at(file.fd, FILLED, 0);
		file.map = mmap(NULL, FILLED, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
		if (file.map == MAP_FAILED)
			target_die("mmap");
	}
	memset(file.map, (int)('a' + nr % 26), FILLED);
}

static void before_filled(unsigned long nr)
{
	if (!nr)
		for (size_t at = 0; at < file.bytes; at += FILLED)
			write_at(file.fd, FILLED, (off_t)at);
}

static void before_other(unsigned long nr)
{
	int fd = open(file.other, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	(void)nr;
	if (fd < 0)
		target_die(file.other);
	close(fd);
}

#define OPERATION(name, ...)                                                                       \
	static NOIPA bool make_##name(unsigned long nr)                                            \
	{                                                                                          \
		off_t at = (off_t)(nr * file.bytes);                                               \
		(void)at;                                                                          \
		bool made = (__VA_ARGS__);                                                         \
		KEEP_FRAME();                                                                      \
		return made;                                                                       \
	}

OPERATION(fsync, !fsync(file.fd))
OPERATION(fdatasync, !fdatasync(file.fd))
OPERATION(sync_file_range, !sync_file_range(file.fd, 0, 0,
					    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
						    SYNC_FILE_RANGE_WAIT_AFTER))
OPERATION(msync, !msync(file.map, FILLED, MS_SYNC))
OPERATION(syncfs, !syncfs(file.fd))
OPERATION(fallocate, !fallocate(file.fd, 0, at, (off_t)file.bytes))
OPERATION(ftruncate, !ftruncate(file.fd, at + (off_t)file.bytes))
OPERATION(extend, pwrite(file.fd, file.block, file.bytes, at) == (ssize_t)file.bytes)
OPERATION(unlink, !unlink(file.other))
OPERATION(rename, !rename(file.other, file.path))
OPERATION(write, pwrite(file.fd, file.block, file.bytes, 0) == (ssize_t)file.bytes)
OPERATION(read, pread(file.fd, file.block, file.bytes, 0) == (ssize_t)file.bytes)

static const struct operation {
	const char *name;
	void (*before)(unsigned long nr); // not measured
	bool (*make)(unsigned long nr);
} operations[] = {
	{"fsync", before_dirty, make_fsync},
	{"fdatasync", before_dirty, make_fdatasync},
	{"sync_file_range", before_dirty, make_sync_file_range},
	{"msync", before_mapped, make_msync},
	{"syncfs", before_dirty, make_syncfs},
	{"fallocate", before_nothing, make_fallocate},
	{"ftruncate", before_nothing, make_ftruncate},
	{"extend", before_nothing, make_extend},
	{"unlink", before_other, make_unlink},
	{"rename", before_other, make_rename},
	{"write", before_filled, make_write},
	{"read", before_filled, make_read},
};

static const struct operation *find_operation(const char *name)
{
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
		if (!strcmp(operations[i].name, name))
			return &operations[i];
	return NULL;
}

static void make_operations(const struct operation *operation, unsigned long count, bool again)
{
	struct wait_call call;
	struct rusage before;

	if (!again || file.fd < 0)
		file_open(operation->name);
	for (unsigned long i = 0; i < count; i++) {
		bool made;

		operation->before(i);
		call_begin(&call, &before);
		made = operation->make(i);
		call_end(&call, &before);
		if (!made)
			target_die(operation->name);
		done_add(&call);
	}
	printf("{\"operation\":\"%s\",\"path\":\"%s\",", operation->name,
	       operation->before == before_other ? file.other : file.path);
	print_done();
}

static bool set_bytes(unsigned long bytes)
{
	if (bytes > 1ul << 24)
		return false;
	file.bytes = bytes ? bytes : FILLED;
	free(file.block);
	file.block = calloc(1, file.bytes > FILLED ? file.bytes : FILLED);
	if (!file.block)
		target_die("calloc");
	return true;
}

static void answer(const char *command)
{
	char word[32] = "", kind[32] = "";
	unsigned long count = 0, length = 0, threads = 1;
	bool again = !strncmp(command, "again ", 6);

	if (again)
		command += 6;
	if (!strcmp(command, "release") && holding) {
		lock_release();
	} else if (holding) {
		printf("{\"error\":\"release first\"}\n");
	} else if (sscanf(command, "hold %31s %lu", kind, &threads) >= 1 && find_lock(kind)) {
		waiter_count = threads <= waiter_max ? threads : waiter_max;
		lock_kind = find_lock(kind);
		lock_hold();
	} else if (sscanf(command, "%31s %lu %lu %lu", word, &count, &length, &threads) >= 3 &&
		   find_lock(word) && length) {
		waiter_count = threads <= waiter_max ? threads : waiter_max;
		lock_kind = find_lock(word);
		holder.keep_ns = length * 1000000;
		lock_rounds(count);
	} else if (find_operation(word) && count && set_bytes(length)) {
		make_operations(find_operation(word), count, again);
	} else {
		printf("{\"error\":\"no such command\"}\n");
	}
}

static unsigned int idle_depth = 1;

struct idler {
	const struct wait_kind *kind;
	int tid;
};

static NOIPA void *idle_main(void *arg)
{
	struct idler *idler = arg;

	pthread_setname_np(pthread_self(), "idle");
	__atomic_store_n(&idler->tid, gettid(), __ATOMIC_RELEASE);
	levels_descend(idle_depth, idler->kind->wait, NULL);
	return NULL;
}

// One after the other: none of them contends for the mutex of the condition variable.
static void start_idle(const char *kind)
{
	struct idler *idler = calloc(1, sizeof(*idler));

	if (!idler)
		target_die("calloc");
	idler->kind = waits_find(kind);
	pthread_detach(target_thread(idle_main, idler, 65536 + idle_depth * 512ul));
	waits_wait_blocked(idler->kind, target_wait_set(&idler->tid));
	printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"%s\",\"address\":\"%#lx\","
	       "\"leaf\":\"wait_%s\",\"depth\":%u,\"root\":\"idle_main\"}\n",
	       idler->tid, kind, (unsigned long)(uintptr_t)idler->kind->object, kind, idle_depth);
}

static void start_actors(void)
{
	holder.go = event_create();
	holder.all_asleep = event_create();
	holder.release = event_create();
	holder.over = event_create();
	waiter_over = event_create();
	pthread_detach(target_thread(holder_main, NULL, 65536));
	target_wait_blocked(target_wait_set(&holder.tid), SYS_read, 0, 0);
	printf("{\"fact\":\"holder\",\"tid\":%d}\n", holder.tid);
	waiters = calloc(waiter_max, sizeof(*waiters));
	if (!waiters)
		target_die("calloc");
	for (size_t i = 0; i < waiter_max; i++) {
		waiters[i].go = event_create();
		pthread_detach(target_thread(waiter_main, &waiters[i], 65536));
		target_wait_blocked(target_wait_set(&waiters[i].tid), SYS_read, 0, 0);
		printf("{\"fact\":\"waiter\",\"tid\":%d}\n", waiters[i].tid);
	}
}

int main(int argc, char **argv)
{
	unsigned long idle = 4;
	bool calm = false;

	if (argc < 2) {
		fprintf(stderr, "usage: known_waits FOLDER [--waiters N] [--idle N] [--depth N] "
				"[--staged 1] [--calm 1]\n");
		return 2;
	}
	file.folder = argv[1];
	file.fd = -1;
	for (int i = 2; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--waiters"))
			waiter_max = strtoul(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--calm"))
			calm = strtoul(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--idle"))
			idle = strtoul(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--depth"))
			idle_depth = (unsigned int)strtoul(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--staged"))
			staged = true;
	}
	waits_init();
	// The holder takes it first.
	sem_init(&the_sem, 0, 1);
	start_actors();
	levels_print(idle_depth);
	for (unsigned long i = 0; i < idle; i++)
		start_idle("cond");
	if (!calm) {
		start_idle("rdlock");
		start_idle("sem");
	}
	start_idle("poll");
	target_ready();
	target_serve(answer);
}

// SPDX-License-Identifier: Apache-2.0
// calm FOLDER [fork | mprotect | many]: whether waits for locks and files take the process's memory map.
// A thread waits in each function that libstallscope.so replaces, and another one releases it. Each
// counts its page faults; a system call that changes or reads the map, or opens a file to do so, or asks the
// server of a file, ends the process by SIGSYS. All other memory of the process is present before that: what is counted was
// not asked for by this program. Prints {"faults": n}.
//
// Before that: `fork` makes a child, which copies the map; `mprotect` has threads that change it all
// the time; with `many` a thousand threads wait.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "target.h"

#define STACK (256 << 10)
#define MANY 1000
#define MANY_STACK (64 << 10)
#define LARGE (32 << 10) // a read or write that counts as a wait
#define LONG_NS 50000000 // a wait that gets a record, with its stack
#define STORM 2
#define HUGE (64 << 20)

static long faults; // in the counted parts
static int done;    // threads that have counted

// From here on in the calling thread, which must not end: such a call ends the process.
static void refuse_calls(void)
{
	static const int refused[] = {
		SYS_mmap,     SYS_munmap,
		SYS_mprotect, SYS_mremap,
		SYS_madvise,  SYS_brk,
		SYS_mincore,  SYS_mlock,
		SYS_munlock,  SYS_process_vm_readv,
		SYS_openat,   SYS_open,
		SYS_msync,    SYS_process_vm_writev,
		SYS_fstat,
	};
	const size_t count = sizeof(refused) / sizeof(refused[0]);
	struct sock_filter filter[32] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	const struct sock_fprog program = {.len = (unsigned short)(count + 3), .filter = filter};

	for (size_t i = 0; i < count; i++)
		filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							     (unsigned)refused[i],
							     (unsigned char)(count - i), 0);
	filter[1 + count] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[2 + count] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		target_die("seccomp");
}

/* What is the program's own. */

// Present, and after a fork copied already.
static void touch(uintptr_t start, uintptr_t end, bool is_writable)
{
	for (uintptr_t page = start; page < end; page += 4096) {
		if (is_writable)
			__atomic_fetch_add((char *)page, 0, __ATOMIC_RELAXED);
		else
			*(volatile char *)page;
	}
}

// All but the library's and its ring's: its .bss comes behind it, without a name.
static void touch_own(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	char line[512], rights[8];
	bool is_after_library = false;

	while (maps && fgets(line, sizeof(line), maps)) {
		const char *path = strchr(line, '/');
		bool has_name = path || strchr(line, '[');

		if (sscanf(line, "%lx-%lx %7s", &start, &end, rights) != 3)
			target_die("maps");
		if (has_name)
			is_after_library = path && strstr(path, "libstallscope");
		if (is_after_library || rights[0] != 'r' || end - start > HUGE ||
		    strstr(line, ".ring") || strstr(line, "[v"))
			continue;
		touch(start, end, rights[1] == 'w');
	}
	if (!maps || fclose(maps))
		target_die("/proc/self/maps");
}

/* Counting. */

static __thread long faults_before;

static long own_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

static void count_begins(void)
{
	faults_before = own_faults();
}

static void count_ends(void)
{
	__atomic_add_fetch(&faults, own_faults() - faults_before, __ATOMIC_RELAXED);
}

/* The waits: step by step with the thread that releases them. */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, others = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int waiter_tid, step, is_woken;
static char buffer[LARGE];
static int file;
static pid_t child;

static void set_step(int to)
{
	__atomic_store_n(&step, to, __ATOMIC_RELEASE);
}

static void wait_step(int wanted)
{
	struct timespec nap = {.tv_nsec = 20000};

	while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) < wanted)
		nanosleep(&nap, NULL);
}

static void wait_on_cond(void)
{
	struct timespec until = target_after(CLOCK_REALTIME, 1000000);

	pthread_mutex_lock(&others);
	pthread_cond_timedwait(&cond, &others, &until);
	pthread_mutex_unlock(&others);
	KEEP_FRAME();
}

static ucontext_t here, there;

static void wait_elsewhere(void)
{
	static char stack[STACK];

	getcontext(&there);
	there.uc_stack = (stack_t){.ss_sp = stack, .ss_size = sizeof(stack)};
	there.uc_link = &here;
	makecontext(&there, wait_on_cond, 0);
	swapcontext(&here, &there);
}

static void use_files(void)
{
	const struct iovec vector = {buffer, sizeof(buffer)};

	fsync(file);
	fdatasync(file);
	ftruncate(file, 2 * LARGE);
	posix_fallocate(file, 0, LARGE);
	for (int i = 0; i < 4; i++) {
		pwrite(file, buffer, sizeof(buffer), 0);
		pread(file, buffer, sizeof(buffer), 0);
	}
	pwrite(file, buffer, sizeof(buffer), 4 * LARGE); // makes it longer
	pwritev(file, &vector, 1, 0);
	preadv(file, &vector, 1, 0);
	rename("calm-1", "calm-2");
	unlink("calm-2");
}

static NOIPA void wait_in_all(void)
{
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	set_step(2);
	wait_step(3);
	pthread_rwlock_rdlock(&rwlock);
	pthread_rwlock_unlock(&rwlock);
	set_step(4);
	wait_step(5);
	pthread_rwlock_wrlock(&rwlock);
	pthread_rwlock_unlock(&rwlock);
	set_step(6);
	wait_step(7);
	pthread_mutex_lock(&others);
	while (!is_woken)
		pthread_cond_wait(&cond, &others);
	pthread_mutex_unlock(&others);
	set_step(8);
	wait_on_cond();
	wait_elsewhere();
	use_files();
}

static void make_child(void)
{
	child = fork();
	if (child < 0)
		target_die("fork");
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (; child == 0;)
		pause();
}

static void *waiter(void *arg)
{
	volatile char deep[20000]; // as stacks of servers are

	memset((char *)deep, 1, sizeof(deep));
	if (arg)
		make_child();
	touch_own();
	refuse_calls();
	__atomic_store_n(&waiter_tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	wait_step(1);
	count_begins();
	wait_in_all();
	count_ends();
	set_step(9);
	for (; deep[0];)
		pause();
	return NULL;
}

// For longer than the threshold.
static void let_wait(void)
{
	const struct timespec nap = {.tv_nsec = LONG_NS};

	target_wait_blocked(waiter_tid, SYS_futex, 0, 0);
	nanosleep(&nap, NULL);
}

static void *releaser(void *arg)
{
	touch_own();
	pthread_mutex_lock(&mutex);
	set_step(1);
	let_wait();
	count_begins();
	pthread_mutex_unlock(&mutex);
	count_ends();
	wait_step(2);
	for (int i = 3; i <= 5; i += 2) {
		pthread_rwlock_wrlock(&rwlock);
		set_step(i);
		let_wait();
		count_begins();
		pthread_rwlock_unlock(&rwlock);
		count_ends();
		wait_step(i + 1);
	}
	set_step(7);
	let_wait();
	count_begins();
	pthread_mutex_lock(&others);
	is_woken = 1;
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&others);
	count_ends();
	return arg;
}

static void *change_map(void *arg)
{
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		target_die("mmap");
	for (int rights = 0; __atomic_load_n(&step, __ATOMIC_ACQUIRE) < 9; rights ^= PROT_READ)
		mprotect(page, 4096, rights);
	return arg;
}

/* A thousand threads. */

static pthread_barrier_t all;
static int waiting;

static void *wait_with_many(void *arg)
{
	char stack[24576]; // touched: a copy reads it

	memset(stack, 1, sizeof(stack));
	__asm__ volatile("" ::"r"(stack) : "memory");
	refuse_calls();
	pthread_barrier_wait(&all);
	pthread_mutex_lock(&others); // present, whichever of its own it was that was not
	pthread_mutex_unlock(&others);
	pthread_barrier_wait(&all);
	count_begins();
	pthread_mutex_lock(&others);
	waiting++;
	while (!is_woken)
		pthread_cond_wait(&cond, &others);
	pthread_mutex_unlock(&others);
	count_ends();
	__atomic_add_fetch(&done, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return arg;
}

static bool are_all_waiting(void)
{
	pthread_mutex_lock(&others);
	bool are = waiting == MANY;
	pthread_mutex_unlock(&others);
	return are;
}

static void run_many(void)
{
	const struct timespec nap = {.tv_nsec = 1000000};

	pthread_barrier_init(&all, NULL, MANY + 1);
	for (int i = 0; i < MANY; i++)
		target_thread(wait_with_many, NULL, MANY_STACK);
	pthread_barrier_wait(&all);
	touch_own();
	pthread_barrier_wait(&all);
	while (!are_all_waiting())
		nanosleep(&nap, NULL);
	pthread_mutex_lock(&others);
	is_woken = 1;
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&others);
	while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < MANY)
		nanosleep(&nap, NULL);
}

static void run_two(const char *scene)
{
	pthread_t storm[STORM];
	bool is_storm = !strcmp(scene, "mprotect");

	target_thread(waiter, strcmp(scene, "fork") ? NULL : &child, STACK);
	target_wait_set(&waiter_tid);
	pthread_t releases = target_thread(releaser, NULL, STACK);
	wait_step(1);
	for (int i = 0; is_storm && i < STORM; i++)
		storm[i] = target_thread(change_map, NULL, 0);
	pthread_join(releases, NULL);
	wait_step(9);
	for (int i = 0; is_storm && i < STORM; i++)
		pthread_join(storm[i], NULL);
	if (child)
		kill(child, SIGKILL);
}

int main(int argc, char **argv)
{
	const char *scene = argc > 2 ? argv[2] : "";

	if (argc < 2 || chdir(argv[1]))
		target_die("FOLDER");
	file = open("calm-1", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || pwrite(file, buffer, 1, LARGE - 1) != 1)
		target_die("a file");
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	if (!strcmp(scene, "many"))
		run_many();
	else
		run_two(scene);
	printf("{\"faults\": %ld}\n", __atomic_load_n(&faults, __ATOMIC_RELAXED));
	return 0;
}

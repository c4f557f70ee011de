// SPDX-License-Identifier: Apache-2.0
// Keeps its own mmap_lock held for as long as a file system is frozen. `target-mmap_lock FILE [late]`:
// FILE is on it. A thread writes to a page of it, which the freeze keeps in the page fault; another
// requests a change of that mapping, and from then on nobody else reads the memory map or the
// memory of this process. More threads wait for a mutex, in functions with known names; with `late` as
// many others have waited for nothing so far.
//
// Commands: `write` and `change` release the two; `wait` lets the others wait for the mutex, too, and
// answers once they do; `give` gives it away, for good; `state` answers how far they got.
#include <sys/mman.h>

#include "target.h"

#define SIZE 65536
#define WAITERS 3

static char *mapping;
static int may_write, may_change, may_wait, written, changed, passed;
static pthread_mutex_t guarded = PTHREAD_MUTEX_INITIALIZER;
static bool has_late;
static pid_t waiter_tids[WAITERS], late_tids[WAITERS], writer_tid, changer_tid;

static pid_t own_tid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static NOIPA void *waiter_body(void *arg)
{
	__atomic_store_n((pid_t *)arg, own_tid(), __ATOMIC_RELEASE);
	pthread_mutex_lock(&guarded);
	pthread_mutex_unlock(&guarded);
	__atomic_add_fetch(&passed, 1, __ATOMIC_RELEASE);
	KEEP_FRAME();
	return NULL;
}

static NOIPA void *late_body(void *arg)
{
	target_wait_set(&may_wait);
	return waiter_body(arg);
}

static NOIPA void *writer_body(void *arg)
{
	(void)arg;
	__atomic_store_n(&writer_tid, own_tid(), __ATOMIC_RELEASE);
	target_wait_set(&may_write);
	*(volatile char *)mapping = 1;
	__atomic_store_n(&written, 1, __ATOMIC_RELEASE);
	KEEP_FRAME();
	return NULL;
}

static NOIPA void *changer_body(void *arg)
{
	(void)arg;
	__atomic_store_n(&changer_tid, own_tid(), __ATOMIC_RELEASE);
	target_wait_set(&may_change);
	if (madvise(mapping, SIZE, MADV_DONTFORK))
		target_die("madvise");
	__atomic_store_n(&changed, 1, __ATOMIC_RELEASE);
	KEEP_FRAME();
	return NULL;
}

static void wait_late(void)
{
	__atomic_store_n(&may_wait, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < WAITERS; i++)
		target_wait_blocked(target_wait_set(&late_tids[i]), SYS_futex, (uintptr_t)&guarded,
				    (uintptr_t)(&guarded + 1));
}

static void answer(const char *command)
{
	if (!strcmp(command, "write"))
		__atomic_store_n(&may_write, 1, __ATOMIC_RELEASE);
	else if (!strcmp(command, "change"))
		__atomic_store_n(&may_change, 1, __ATOMIC_RELEASE);
	else if (!strcmp(command, "wait"))
		wait_late();
	else if (!strcmp(command, "give"))
		pthread_mutex_unlock(&guarded);
	if (has_late)
		printf("{\"passed\": %d, ", __atomic_load_n(&passed, __ATOMIC_ACQUIRE));
	printf("%s\"written\": %d, \"changed\": %d}\n", has_late ? "" : "{",
	       __atomic_load_n(&written, __ATOMIC_ACQUIRE),
	       __atomic_load_n(&changed, __ATOMIC_ACQUIRE));
}

int main(int argc, char **argv)
{
	int fd = argc >= 2 ? open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;

	if (fd < 0 || ftruncate(fd, SIZE))
		target_die("FILE");
	mapping = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapping == MAP_FAILED)
		target_die("mmap");
	pthread_mutex_lock(&guarded);
	target_thread(writer_body, NULL, 0);
	target_thread(changer_body, NULL, 0);
	has_late = argc > 2;
	for (int i = 0; has_late && i < WAITERS; i++)
		target_thread(late_body, &late_tids[i], 0);
	for (int i = 0; i < WAITERS; i++) {
		target_thread(waiter_body, &waiter_tids[i], 0);
		target_wait_blocked(target_wait_set(&waiter_tids[i]), SYS_futex,
				    (uintptr_t)&guarded, (uintptr_t)(&guarded + 1));
	}
	printf("{\"fact\": \"writer\", \"tid\": %d}\n", target_wait_set(&writer_tid));
	printf("{\"fact\": \"changer\", \"tid\": %d}\n", target_wait_set(&changer_tid));
	for (int i = 0; i < WAITERS; i++)
		printf("{\"fact\": \"waiter\", \"tid\": %d}\n", waiter_tids[i]);
	target_ready();
	target_serve(answer);
}

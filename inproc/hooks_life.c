// SPDX-License-Identifier: Apache-2.0
// The start and the end of the process and of its threads, and forks.
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "inproc/hooks_wait.h"
#include "inproc/raw_call.h"

// glibc keeps the values of the first 32 keys in the thread itself and allocates for others
// (PTHREAD_KEY_2NDLEVEL_SIZE in nptl).
#define KEYS_WITHOUT_ALLOCATION 32
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14 */
#endif
#define PAGE 4096

// In libc since glibc 2.3.2, where pthread_atfork() is linked statically by each library.
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
			     void *dso);
extern void *__dso_handle __attribute__((visibility("hidden")));

static uint32_t is_own_elsewhere = 1;
// Becomes 0 in any child: _Fork() and clone(2) run no handlers. A child of vfork(2) shares the
// memory of its parent, and counts as the parent.
static uint32_t *is_own = &is_own_elsewhere;

static pthread_key_t end_key;
static bool has_end_key;
static __thread bool end_is_noticed __attribute__((tls_model("initial-exec")));

static void forked(void)
{
	__atomic_store_n(is_own, 1, __ATOMIC_RELAXED);
	recorder_forked();
}

void hook_notice_fork(void)
{
	if (STALL_LIKELY(__atomic_load_n(is_own, __ATOMIC_RELAXED)))
		return;
	forked();
}

static void thread_ends(void *value)
{
	recorder_thread_ends();
}

static void make_end_key(void)
{
	if (has_end_key || !real.key_create || !real.setspecific)
		return;
	if (!real.key_create(&end_key, thread_ends))
		has_end_key = end_key < KEYS_WITHOUT_ALLOCATION;
}

void hook_notice_end(void)
{
	if (STALL_LIKELY(end_is_noticed) || !has_end_key)
		return;
	end_is_noticed = true;
	real.setspecific(end_key, &end_key);
}

static void watch_forks(void)
{
	long page = raw_call6(SYS_mmap, 0, PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page > -PAGE && page < 0)
		return;
	if (raw_call3(SYS_madvise, page, PAGE, MADV_WIPEONFORK)) {
		raw_call2(SYS_munmap, page, PAGE);
		return;
	}
	*(uint32_t *)page = 1;
	is_own = (uint32_t *)page;
}

// Not a destructor, which does not get the status. MySQL's handler of fatal signals ends in exit(1)
// (5.5) or _exit(1) (later): such a ring is kept as evidence.
static void process_exits(int status, void *argument)
{
	if (!status)
		recorder_exits();
}

__attribute__((constructor)) static void library_begins(void)
{
	real_resolve();
	make_end_key();
	watch_forks();
	__register_atfork(NULL, NULL, forked, __dso_handle);
	on_exit(process_exits, NULL);
}

// Children that were forked for a single task run no handlers at their end.
INTERPOSED void _exit(int status)
{
	process_exits(status, NULL);
	REAL(exit_at_once)(status);
	for (;;) // where the real function is not known yet
		raw_call1(SYS_exit_group, status);
}

ALSO(_exit, _Exit);

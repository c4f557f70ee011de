// SPDX-License-Identifier: Apache-2.0
// The start and the end of the process and of its threads, and forks.
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "inproc/hooks_wait.h"
#include "inproc/raw_call.h"
#include "inproc/recorder_threads.h"

// glibc keeps the values of the first 32 keys in the thread itself and allocates for others
// (PTHREAD_KEY_2NDLEVEL_SIZE in nptl).
#define KEYS_WITHOUT_ALLOCATION 32

// In libc since glibc 2.3.2, where pthread_atfork() is linked statically by each library.
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
			     void *dso);
extern void *__dso_handle __attribute__((visibility("hidden")));

static pthread_key_t end_key;
static bool has_end_key;
static __thread bool end_is_noticed __attribute__((tls_model("initial-exec")));

static void forked(void)
{
	recorder_forked();
	__atomic_store_n(&recorder_state.is_own, 1, __ATOMIC_RELAXED);
}

void hook_notice_fork(void)
{
	if (STALL_LIKELY(__atomic_load_n(&recorder_state.is_own, __ATOMIC_RELAXED)))
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

// The frame is replaced by that of the server's function: stacks look as they do without this library.
static void *thread_begins(void *argument)
{
	struct recorder_run run = recorder_thread_begins(argument);

	hook_notice_end();
	return run.run(run.argument);
}

// 0: not known. Without attributes it is the default, which any new attributes have.
static uint64_t stack_size(const pthread_attr_t *attr)
{
	size_t size = 0, guard = 0;
	pthread_attr_t defaults;

	if (!real.attr_init || !real.attr_getstacksize || !real.attr_getguardsize)
		return 0;
	if (!attr && real.attr_init(&defaults))
		return 0;
	attr = attr ? attr : &defaults;
	if (real.attr_getstacksize(attr, &size) || real.attr_getguardsize(attr, &guard))
		return 0;
	return size > guard ? size - guard : 0;
}

INTERPOSED int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			      void *argument)
{
	if (STALL_UNLIKELY(!real.create))
		real_resolve();
	if (!real.create)
		return EAGAIN; // the program has no thread library
	if (real.follows_locks || !has_end_key)
		return real.create(thread, attr, run, argument);
	hook_notice_fork();
	struct recorder_start *start =
		recorder_before_thread((struct recorder_run){run, argument}, stack_size(attr));
	if (!start)
		return real.create(thread, attr, run, argument);
	int error = real.create(thread, attr, thread_begins, start);
	if (error)
		recorder_no_thread(start);
	return error;
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
	recorder_state.is_own = 1;
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

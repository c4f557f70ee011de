// SPDX-License-Identifier: Apache-2.0
// costs: measures what one call costs, with and without a watch. Command: `KIND BATCHES`; the
// answer is the median of so many batches. Kinds: getppid, which nobody waits in; futex_changed,
// which finds another value; futex_wake, of nobody; futex_wait: the turn goes to another thread and
// back, two waits and two wakes; function, which has the name of one that servers wait in, and is
// called only rarely.
#include "batches.h"

#include <linux/futex.h>
#include <sys/eventfd.h>

static uint32_t word, turn;

static void futex(uint32_t *at, int operation, uint32_t value)
{
	syscall(SYS_futex, at, operation, value, NULL, NULL, 0);
}

static NOIPA void call_getppid(void)
{
	syscall(SYS_getppid);
}

static NOIPA void call_futex_changed(void)
{
	futex(&word, FUTEX_WAIT_PRIVATE, 1);
}

static NOIPA void call_futex_wake(void)
{
	futex(&word, FUTEX_WAKE_PRIVATE, 1);
}

static void pass(uint32_t whose)
{
	__atomic_store_n(&turn, whose, __ATOMIC_RELEASE);
	futex(&turn, FUTEX_WAKE_PRIVATE, 1);
	while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) == whose)
		futex(&turn, FUTEX_WAIT_PRIVATE, whose);
}

// Between two measurements the other thread sleeps in read(2): a futex that no lock is known of would
// count as a long wait, for which an agent does not rest.
static int begins;
static bool plays;

static NOIPA void *other_main(void *arg)
{
	eventfd_t count;

	for (;;) {
		eventfd_read(begins, &count);
		while (!__atomic_load_n(&turn, __ATOMIC_ACQUIRE))
			futex(&turn, FUTEX_WAIT_PRIVATE, 0);
		while (__atomic_load_n(&plays, __ATOMIC_ACQUIRE))
			pass(0);
	}
	return arg;
}

static void play(bool begin)
{
	__atomic_store_n(&plays, begin, __ATOMIC_RELEASE);
	__atomic_store_n(&turn, !begin, __ATOMIC_RELEASE);
	if (begin)
		eventfd_write(begins, 1);
	else
		futex(&turn, FUTEX_WAKE_PRIVATE, 1);
}

static void start_other(void)
{
	batches_stay_here();
	begins = eventfd(0, EFD_CLOEXEC);
	pthread_detach(target_thread(other_main, NULL, 65536));
}

static NOIPA void call_futex_wait(void)
{
	pass(1);
}

// Called as InnoDB's wait of a thread for a row is, in C++.
NOIPA void lock_wait_suspend_thread(void *thread) __asm__(
	"_Z24lock_wait_suspend_threadP9que_thr_t");
NOIPA void lock_wait_suspend_thread(void *thread)
{
	(void)thread;
	// Begins by a push, as functions do that are not as small as this: the kernel does it in
	// place of a single step (arch/x86/kernel/uprobes.c).
	__asm__ volatile("" ::: "rbx");
}

static NOIPA void call_function(void)
{
	lock_wait_suspend_thread(&word);
	KEEP_FRAME();
}

static const struct batch_kind kinds[] = {
	{"getppid", call_getppid, 2000, 0},	  {"futex_changed", call_futex_changed, 1000, 0},
	{"futex_wake", call_futex_wake, 1000, 0}, {"futex_wait", call_futex_wait, 200, 0},
	{"function", call_function, 1, 500000},
};

static void answer(const char *command)
{
	bool together = !strncmp(command, "futex_wait ", 11);

	if (together)
		play(true);
	batches_answer(kinds, sizeof(kinds) / sizeof(kinds[0]), CLOCK_MONOTONIC, command);
	if (together)
		play(false);
}

int main(void)
{
	start_other();
	target_ready();
	target_serve(answer);
}

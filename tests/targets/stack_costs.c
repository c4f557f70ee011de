// SPDX-License-Identifier: Apache-2.0
// stack_costs: the library's copy of a stack, a comparison with that copy, and libunwind's
// unw_backtrace, of the same stack in the same thread. Commands: `compare FRAMES BATCHES`; `lock`:
// whether either returns while another thread holds the loader's lock.
#include "batches.h"

#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <link.h>

#include "inproc/hooks_wait.h"
#include "inproc/recorder_ring.h"
#include "inproc/recorder_slots.h"
#include "inproc/recorder_stack.h"

#define BATCH 100
#define LOCALS 1000 // bytes in every other frame: 13 KiB of 25 frames, as servers have
#define MAX_FRAMES 128
#define MAX_BATCHES 10000
#define USED 512 // bytes of the stack that a batch writes itself
#define HOLD_MS 500
#define KNOWN 10 // times that a place was unwound before

static struct recorder_thread *thread;
static double copied[MAX_BATCHES], compared[MAX_BATCHES], unwound[MAX_BATCHES];
static unsigned int batches, bytes, frames;

static NOIPA void copy(void)
{
	struct stall_ring_stack *stack = recorder_slot_stack(recorder_ring(), thread->index);
	uint32_t room = recorder_ring()->layout.stack_stride - sizeof(*stack);
	struct recorder_place place;

	hook_here(&place);
	recorder_regs(&place, (uint64_t *)stack->regs);
	bytes = recorder_stack_copy(recorder_ring(), thread, place.sp, stack->bytes, room,
				    (uint64_t *)&stack->whole);
}

// All but what the calls since then have written.
static NOIPA void compare_copy(void)
{
	struct stall_ring_stack *stack = recorder_slot_stack(recorder_ring(), thread->index);
	const uint8_t *sp = (const uint8_t *)stack->regs[STALL_BPF_SP];

	if (memcmp(sp + USED, stack->bytes + USED, bytes - USED))
		target_die("the stack has changed");
}

static NOIPA void unwind(void)
{
	void *addresses[MAX_FRAMES];

	frames = unw_backtrace(addresses, MAX_FRAMES);
	KEEP_FRAME();
}

static double batch_ns(void (*call)(void))
{
	uint64_t start = batches_now(CLOCK_THREAD_CPUTIME_ID);

	for (int i = 0; i < BATCH; i++)
		call();
	return (double)(batches_now(CLOCK_THREAD_CPUTIME_ID) - start) / BATCH;
}

static NOIPA void measure(void)
{
	for (unsigned int i = 0; i < batches; i++) {
		copied[i] = batch_ns(copy);
		compared[i] = batch_ns(compare_copy);
		unwound[i] = batch_ns(unwind);
	}
}

// Different functions, since libunwind remembers what it knows by address.
static NOIPA void descend(unsigned int depth, void (*last)(void));
#define LEVEL(name)                                                                                \
	static NOIPA void name(unsigned int depth, void (*last)(void))                             \
	{                                                                                          \
		char locals[LOCALS];                                                               \
		__asm__ volatile("" : : "r"(locals) : "memory");                                   \
		descend(depth, last);                                                              \
		KEEP_FRAME();                                                                      \
	}
LEVEL(level_0)
LEVEL(level_1)
LEVEL(level_2)
LEVEL(level_3)

static NOIPA void descend(unsigned int depth, void (*last)(void))
{
	static void (*const levels[])(unsigned int, void (*)(void)) = {level_0, level_1, level_2,
								       level_3};

	if (depth < 2)
		last();
	else
		levels[depth / 2 % 4](depth - 2, last);
	KEEP_FRAME();
}

static void compare(unsigned int depth)
{
	descend(depth, measure);
	printf("{\"frames\":%u,\"bytes\":%u,\"copy\":%.1f,\"compare\":%.1f,\"unwind\":%.1f}\n",
	       frames, bytes, batches_median(copied, batches), batches_median(compared, batches),
	       batches_median(unwound, batches));
}

/* The loader's lock: glibc holds it while it calls back. */

static bool is_held, is_done[3];

static int hold(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct timespec nap = {.tv_nsec = HOLD_MS * 1000000L};

	(void)info, (void)size;
	__atomic_store_n(&is_held, true, __ATOMIC_RELEASE);
	nanosleep(&nap, NULL);
	for (int i = 0; i < 3; i++)
		((bool *)arg)[i] = __atomic_load_n(&is_done[i], __ATOMIC_ACQUIRE);
	return 1;
}

static void *holder_main(void *arg)
{
	dl_iterate_phdr(hold, arg);
	return NULL;
}

static void done(int index)
{
	__atomic_store_n(&is_done[index], true, __ATOMIC_RELEASE);
}

static NOIPA void try_known(void)
{
	copy();
	done(0);
	unwind();
	done(1);
}

static NOIPA void try_unknown(void)
{
	unwind();
	done(2);
	KEEP_FRAME();
}

static pthread_t holder;

static NOIPA void hold_at_last(int i, bool *returned)
{
	if (i < KNOWN)
		return;
	memset(is_done, 0, sizeof(is_done));
	is_held = false;
	pthread_create(&holder, NULL, holder_main, returned);
	while (!__atomic_load_n(&is_held, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void try_lock(void)
{
	bool returned[3] = {false};

	// One place that calls, and nothing known of it in advance: libunwind knows all addresses.
	for (volatile int i = 0; i <= KNOWN; i++) {
		hold_at_last(i, returned);
		try_known();
	}
	try_unknown();
	pthread_join(holder, NULL);
	printf("{\"copy\":%d,\"known\":%d,\"unknown\":%d}\n", returned[0], returned[1],
	       returned[2]);
}

static void answer(const char *command)
{
	unsigned int depth;

	if (!strcmp(command, "lock"))
		try_lock();
	else if (sscanf(command, "compare %u %u", &depth, &batches) == 2 && depth < MAX_FRAMES &&
		 batches && batches <= MAX_BATCHES)
		compare(depth);
	else
		printf("{\"error\":\"no such command\"}\n");
}

// A slot of its own, as a wait takes.
static void take_slot(void)
{
	const struct recorder_wait wait = {.kind = STALL_WAIT_FSYNC, .fd = -1};
	struct recorder_place place;

	thread = recorder_enter();
	if (!thread)
		target_die("recorder_enter");
	hook_here(&place);
	recorder_begin(thread, &wait, &place, true);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	if (!recorder_has_slot(recorder_ring(), thread))
		target_die("no ring");
}

int main(void)
{
	take_slot();
	target_ready();
	target_serve(answer);
}

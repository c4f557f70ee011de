// SPDX-License-Identifier: Apache-2.0
// flip N: N threads that go down one chain of functions, nap there for microseconds, come back and
// go down another whose frames have the same sizes. A stack that was copied while its thread ran
// mixes the two; one that is called verified must never. Commands: `turns`.
#include "target.h"

#include <sys/prctl.h>

// Ten of these take longer to copy than the thread needs to change them.
#define FRAME 512

#define CHAIN(x, nr, next)                                                                         \
	NOIPA void x##_##nr(unsigned long turn);                                                   \
	NOIPA void x##_##nr(unsigned long turn)                                                    \
	{                                                                                          \
		volatile unsigned long pad[FRAME];                                                 \
                                                                                                   \
		pad[0] = pad[FRAME - 1] = turn;                                                    \
		next(pad[0]);                                                                      \
		KEEP_FRAME();                                                                      \
	}

// clang-format off
#define CHAINS(x)                                                                                  \
	NOIPA void x##_nap(unsigned long turn);                                                    \
	NOIPA void x##_nap(unsigned long turn)                                                     \
	{                                                                                          \
		struct timespec nap = {.tv_nsec = (long)(turn % 7) * 3000 + 1};                    \
                                                                                                   \
		nanosleep(&nap, NULL);                                                             \
		KEEP_FRAME();                                                                      \
	}                                                                                          \
	CHAIN(x, 9, x##_nap) CHAIN(x, 8, x##_9) CHAIN(x, 7, x##_8) CHAIN(x, 6, x##_7)              \
	CHAIN(x, 5, x##_6) CHAIN(x, 4, x##_5) CHAIN(x, 3, x##_4) CHAIN(x, 2, x##_3)                \
	CHAIN(x, 1, x##_2) CHAIN(x, 0, x##_1)
// clang-format on

CHAINS(heads)
CHAINS(tails)

static unsigned long turns;

static NOIPA void *flip_main(void *arg)
{
	// The default slack would make each nap 50 µs longer.
	prctl(PR_SET_TIMERSLACK, 1);
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	for (unsigned long turn = 0;; turn++) {
		heads_0(turn);
		tails_0(turn);
		__atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void answer(const char *command)
{
	(void)command;
	printf("{\"turns\":%lu}\n", __atomic_load_n(&turns, __ATOMIC_RELAXED));
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 8;
	int *tids = calloc((size_t)count + 1, sizeof(*tids));

	if (!tids)
		target_die("calloc");
	for (int i = 0; i < count; i++)
		pthread_detach(target_thread(flip_main, &tids[i], 1 << 18));
	for (int i = 0; i < count; i++)
		printf("{\"fact\":\"flip\",\"tid\":%d}\n", target_wait_set(&tids[i]));
	target_ready();
	target_serve(answer);
}

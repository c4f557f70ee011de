// SPDX-License-Identifier: Apache-2.0
// Two chains of ten functions, heads and tails, whose frames have the same sizes. A thread that goes
// down one after the other changes its stack so that a copy of two moments shows: it mixes them.
#ifndef CHAINS_H
#define CHAINS_H

#include "target.h"

#include <sys/prctl.h>

// Ten of these take longer to copy than the thread needs to change them.
#ifndef CHAIN_FRAME
#define CHAIN_FRAME 512
#endif
#define CHAIN_LENGTH 10

#define CHAIN(x, nr, next)                                                                         \
	NOIPA void x##_##nr(unsigned long turn);                                                   \
	NOIPA void x##_##nr(unsigned long turn)                                                    \
	{                                                                                          \
		volatile unsigned long pad[CHAIN_FRAME];                                           \
                                                                                                   \
		pad[0] = pad[CHAIN_FRAME - 1] = turn;                                              \
		next(pad[0]);                                                                      \
		KEEP_FRAME();                                                                      \
	}

// clang-format off
// x_0 calls x_1, and so on, x_9 calls x_end, which is the program's.
#define CHAIN_OF(x)                                                                                \
	NOIPA void x##_end(unsigned long turn);                                                    \
	CHAIN(x, 9, x##_end) CHAIN(x, 8, x##_9) CHAIN(x, 7, x##_8) CHAIN(x, 6, x##_7)              \
	CHAIN(x, 5, x##_6) CHAIN(x, 4, x##_5) CHAIN(x, 3, x##_4) CHAIN(x, 2, x##_3)                \
	CHAIN(x, 1, x##_2) CHAIN(x, 0, x##_1)
// clang-format on

static unsigned long chain_interrupted; // naps that did not last: nobody may interrupt them

// Naps are up to six times as long.
static long chain_nap_ns = 3000;

// Some microseconds, another time in each turn.
static inline void chain_nap(unsigned long turn)
{
	struct timespec nap = {.tv_nsec = (long)(turn % 7) * chain_nap_ns + 1};

	if (nanosleep(&nap, NULL))
		__atomic_fetch_add(&chain_interrupted, 1, __ATOMIC_RELAXED);
}

// The default slack would make each nap 50 µs longer.
static inline void chain_begin(void)
{
	prctl(PR_SET_TIMERSLACK, 1);
}

// Prints a whole stack of the program's own functions, innermost first: names with commas between
// them, what of a chain lies there ("heads", "tails" or NULL), more names.
static inline void chain_print(const char *inner, const char *chain, const char *outer)
{
	const char *comma = "";

	printf("{\"fact\":\"chain\",\"frames\":[");
	for (const char *name = inner; name && *name; comma = ",") {
		size_t length = strcspn(name, ",");

		printf("%s\"%.*s\"", comma, (int)length, name);
		name += length + (name[length] == ',');
	}
	for (int nr = CHAIN_LENGTH - 1; chain && nr >= 0; nr--, comma = ",")
		printf("%s\"%s_%d\"", comma, chain, nr);
	for (const char *name = outer; name && *name; comma = ",") {
		size_t length = strcspn(name, ",");

		printf("%s\"%.*s\"", comma, (int)length, name);
		name += length + (name[length] == ',');
	}
	printf("]}\n");
}

static unsigned long chain_turns;

static inline void chain_turned(void)
{
	__atomic_fetch_add(&chain_turns, 1, __ATOMIC_RELAXED);
}

static inline void chain_answer(const char *command)
{
	(void)command;
	printf("{\"turns\":%lu,\"interrupted\":%lu}\n",
	       __atomic_load_n(&chain_turns, __ATOMIC_RELAXED),
	       __atomic_load_n(&chain_interrupted, __ATOMIC_RELAXED));
}

#endif

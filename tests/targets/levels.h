// SPDX-License-Identifier: Apache-2.0
// Twenty-five functions that call each other in order, with frames of different sizes. The odd ones
// are static: a stripped program has no name for them, and its exported neighbours must not lend
// theirs.
#ifndef LEVELS_H
#define LEVELS_H

#include "target.h"

#define LEVELS 25

struct descent {
	void (*leaf)(void *arg);
	void *arg;
	unsigned int left; // levels still to go down
};

typedef void (*level_fn)(struct descent *);
extern const level_fn level_next[LEVELS];

#define LEVEL(storage, nr, bytes)                                                                  \
	storage NOIPA void level_##nr(struct descent *descent);                                    \
	storage NOIPA void level_##nr(struct descent *descent)                                     \
	{                                                                                          \
		volatile char pad[bytes];                                                          \
                                                                                                   \
		pad[0] = pad[(bytes)-1] = (char)descent->left;                                     \
		if (descent->left) {                                                               \
			descent->left--;                                                           \
			level_next[nr](descent);                                                   \
		} else {                                                                           \
			descent->leaf(descent->arg);                                               \
		}                                                                                  \
		pad[0] = pad[(bytes)-1];                                                           \
		KEEP_FRAME();                                                                      \
	}

LEVEL(, 0, 8)
LEVEL(static, 1, 24)
LEVEL(, 2, 40)
LEVEL(static, 3, 8)
LEVEL(, 4, 120)
LEVEL(static, 5, 16)
LEVEL(, 6, 72)
LEVEL(static, 7, 200)
LEVEL(, 8, 8)
LEVEL(static, 9, 56)
LEVEL(, 10, 16)
LEVEL(static, 11, 88)
LEVEL(, 12, 32)
LEVEL(static, 13, 8)
LEVEL(, 14, 104)
LEVEL(static, 15, 24)
LEVEL(, 16, 48)
LEVEL(static, 17, 136)
LEVEL(, 18, 8)
LEVEL(static, 19, 64)
LEVEL(, 20, 16)
LEVEL(static, 21, 8)
LEVEL(, 22, 152)
LEVEL(static, 23, 32)
LEVEL(, 24, 8)

// Entry N is what level_N calls.
const level_fn level_next[LEVELS] = {
	level_1,  level_2,  level_3,  level_4,	level_5,  level_6,  level_7,  level_8,	level_9,
	level_10, level_11, level_12, level_13, level_14, level_15, level_16, level_17, level_18,
	level_19, level_20, level_21, level_22, level_23, level_24, level_0,
};

// Calls `leaf(arg)` from `depth` levels down, level_0 outermost.
static inline void levels_descend(unsigned int depth, void (*leaf)(void *), void *arg)
{
	struct descent descent = {.leaf = leaf, .arg = arg, .left = depth ? depth - 1 : 0};

	if (depth)
		level_0(&descent);
	else
		leaf(arg);
	KEEP_FRAME();
}

// Prints the fact that says which levels there are and which of them are static.
static inline void levels_print(unsigned int depth)
{
	printf("{\"fact\":\"levels\",\"count\":%d,\"depth\":%u,\"static\":\"odd\"}\n", LEVELS,
	       depth);
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Memory shared between the probe and its unprivileged worker at one address: stack copies go in
// once and are unwound in place. Reserved at start, backed by pages only as they are used.
#ifndef STALL_ARENA_H
#define STALL_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct stall_arena {
	uint8_t *base;
	size_t size; // reserved
	size_t used;
	size_t high; // highest `used` since pages were last released
	size_t held; // memory below it is not allocated again
};

struct stall_error *stall_arena_init(struct stall_arena *arena, size_t size);
void stall_arena_deinit(struct stall_arena *arena);
// Whether children that are forked from now on inherit it, which is the default. A child must not
// see the data of another.
void stall_arena_inherit(const struct stall_arena *arena, bool inherit);
// 16-byte aligned; NULL when the arena is full. Not zeroed.
void *stall_arena_alloc(struct stall_arena *arena, size_t size);
// Frees everything; releases pages to the system where more than `keep` bytes were in use.
void stall_arena_reset(struct stall_arena *arena, size_t keep);
// Memory that is allocated now survives resets until it is released: a child may still write to it.
void stall_arena_hold(struct stall_arena *arena);
void stall_arena_release(struct stall_arena *arena);

#endif

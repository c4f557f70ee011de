/* SPDX-License-Identifier: Apache-2.0 */
/* A slot for each thread that has something to record. */
#ifndef STALL_RECORDER_SLOTS_H
#define STALL_RECORDER_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "inproc/recorder_memory.h"
#include "inproc/recorder_wait.h"

enum recorder_doing {
	RECORDER_IDLE,
	RECORDER_WRITES, /* is in a call of the library */
	RECORDER_WAITS,	 /* in the server's own call, between begin and end */
};

/* In thread-local storage, and small: static TLS is scarce. What a light transfer uses comes
 * first. */
struct recorder_thread {
	uint32_t generation;	      /* of the ring that the slot is in */
	uint8_t doing;		      /* enum recorder_doing */
	uint8_t ended;		      /* the thread has ended: nothing more is recorded */
	uint8_t has_stack;	      /* the slot has the stack of this wait */
	uint8_t nested;		      /* calls within a call, refused since the outermost began */
	uint32_t index;		      /* of the slot */
	uint32_t seq;		      /* of the slot: odd in a wait */
	struct stall_wait_slot *slot; /* NULL: none */
	uintptr_t frame;	      /* of the outermost call of the library */
	uint64_t start_ns;	      /* of the wait, CLOCK_MONOTONIC; light ones: _COARSE */
	const struct recorder_place *light_place; /* where a light transfer began, until its end */
	bool is_light;			/* the last wait: a transfer on a file that is known */
	bool marked;			/* the object has a mark: */
	uint16_t mark;			/* its index */
	uint16_t kind;			/* enum stall_wait_kind */
	uint32_t operation;		/* recorder_wait.operation */
	uint32_t waits;			/* that it has begun */
	int fd;				/* of a transfer, */
	uint64_t file_size;		/* and that of a file that is written to */
	uint64_t last_tick_ns;		/* of the coarse clock, at the end of a light transfer */
	uint64_t refused_ns;		/* when it last got no slot */
	bool is_counted;		/* in recorder_state.threads */
	bool has_bounds;		/* of its own stack: */
	uintptr_t stack_low, stack_end; /* all between them can be read; 0: not determined */
	uint64_t object;		/* recorder_wait.object */
	struct stall_wait_stat *stat;	/* of the last wait */
	uint64_t tag;			/* of the stat */
	struct recorder_place place;	/* that the wait began at */
};

static inline uint64_t recorder_threshold_of(const struct recorder_ring *ring, uint32_t kind)
{
	return __atomic_load_n(&ring->header->threshold_ns[kind], __ATOMIC_RELAXED);
}

static inline bool recorder_has_slot(const struct recorder_ring *ring,
				     const struct recorder_thread *thread)
{
	return ring && thread->slot && thread->generation == ring->generation;
}

/* Whether a thread without one may try to take one. */
bool recorder_slot_is_due(const struct recorder_thread *thread);
bool recorder_slot_take(struct recorder_ring *ring, struct recorder_thread *thread);
void recorder_slot_free(struct recorder_ring *ring, struct recorder_thread *thread);
void recorder_read_comm(char comm[STALL_BPF_COMM]);
/* The start of the oldest wait in flight for this object, and the number of waiters; 0: none. */
uint64_t recorder_oldest_wait(struct recorder_ring *ring, uint64_t object, uint32_t *ret_count);

/* Marks the wait of the thread as long: the release of its object is recorded (recorder_wait.h). */
void recorder_mark(struct recorder_thread *thread);
void recorder_unmark(struct recorder_thread *thread);

#endif

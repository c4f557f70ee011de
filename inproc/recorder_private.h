/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the recorder share. */
#ifndef STALL_RECORDER_PRIVATE_H
#define STALL_RECORDER_PRIVATE_H

#include <time.h>

#include "inproc/raw_call.h"
#include "inproc/recorder.h"

/* Stores before it are seen before those after it. x86 keeps them in order, compilers do not. */
#define recorder_write_barrier() __atomic_thread_fence(__ATOMIC_RELEASE)

/* vDSO: neither locks nor allocates, in any glibc since 2.17; else a system call. */
static inline uint64_t recorder_clock(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}
static inline uint64_t recorder_now(void)
{
	return recorder_clock(CLOCK_MONOTONIC);
}

/* Not memcpy(3): a sanitizer's own looks at every byte, and a stack has bytes that nobody may read. */
static inline void recorder_copy(void *to, const void *from, size_t size)
{
	asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}
static inline void recorder_clear(void *to, size_t size)
{
	asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(0) : "memory");
}

/* recorder_settings.c */

struct recorder_settings {
	const char *directory, *xdg; /* NULL: not set, or not to be believed */
	uint64_t threshold_ns[STALL_WAIT_KINDS];
	uint32_t slots;
	bool keep, off;
	const char *bad; /* a variable whose value was passed over */
};
const struct recorder_settings *recorder_settings(void);
/* A line on standard error, if that is still what it was: "stallscope: " and the parts up to NULL. */
void recorder_say(const char *const *parts);

/* recorder_ring.c: the mapping. Its layout is kept here: the header in the file may be changed by
 * others at any time. */

struct recorder_ring {
	struct stall_ring_header *header;
	struct stall_ring_header layout; /* the constant part */
	uint32_t generation;		 /* of this process: forks */
	bool is_whole;			 /* all of its memory is there */
	char path[256];
};

/* NULL: there is none (yet). */
struct recorder_ring *recorder_ring(void);
/* Makes it where there is none. */
struct recorder_ring *recorder_ring_needed(void);
/* It could not be made, and is not tried again. */
bool recorder_ring_failed(void);
/* After a fork(2): it is the parent's. `in_write`: this thread may go on writing into it. */
void recorder_ring_forget(bool in_write);
/* False in a child of vfork(2), or of a fork that was not noticed: it has our memory, and a life of
 * its own. */
bool recorder_is_own_process(void);

static inline void *recorder_ring_at(const struct recorder_ring *ring, uint64_t offset)
{
	return (uint8_t *)ring->header + offset;
}
void recorder_ring_lost(struct recorder_ring *ring, enum stall_wait_lost cause);

/* recorder_memory.c */

/* False: that memory cannot be had. Anything but slots is refused beyond what so many threads may
 * take. What there is not must not be touched. */
bool recorder_ring_has(struct recorder_ring *ring, uint64_t offset, uint64_t size);
/* What is not there yet was never written to: it is all 0. */
bool recorder_ring_has_already(const struct recorder_ring *ring, uint64_t offset, uint64_t size);
/* How much of its stack's place a slot may fill, so that all have some. */
uint32_t recorder_stack_share(const struct recorder_ring *ring);
/* The slot is in no wait. */
void recorder_stack_give_back(struct recorder_ring *ring, uint32_t slot);
void recorder_memory_forget(void);

/* recorder_create.c: 0, or an errno, and what could not be done. */

int recorder_create(struct recorder_ring *ring, const char **ret_what);
#define RECORDER_POPULATE_WRITE 23 /* MADV_POPULATE_WRITE, Linux 5.14 */

/* recorder_stale.c */

/* Of the rings that dead servers left in the folder, a descriptor, only the latest stay: a server
 * that dies each time it is started would fill the memory. */
void recorder_remove_stale(const struct recorder_ring *ring, int folder);

/* recorder_slots.c */

enum recorder_doing {
	RECORDER_IDLE,
	RECORDER_WRITES, /* is in a call of the library */
	RECORDER_WAITS,	 /* in the server's own call, between begin and end */
};

/* In thread-local storage, and small: static TLS is scarce. */
struct recorder_thread {
	uint32_t generation; /* of the ring that the slot is in */
	uint8_t doing, ended, has_stack, nested;
	uint32_t index, seq;
	struct stall_wait_slot *slot;	/* NULL: none */
	uint64_t refused_ns;		/* when it last got none */
	uintptr_t frame;		/* of the outermost call of the library */
	uintptr_t stack_low, stack_end; /* between them all can be read; 0: not looked at */
	uint64_t start_ns, object;
	struct stall_wait_stat *stat;
	uint64_t tag; /* of the stat */
	struct recorder_place place;
	uint32_t operation, waits;
	uint16_t kind, mark;
	bool marked;
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

bool recorder_slot_take(struct recorder_ring *ring, struct recorder_thread *thread);
void recorder_slot_free(struct recorder_ring *ring, struct recorder_thread *thread);
uint32_t recorder_slots_used(void);
void recorder_slots_forget(void);
void recorder_read_comm(char comm[STALL_BPF_COMM]);
/* The start of the oldest wait for this object that goes on, and how many wait; 0: nobody. */
uint64_t recorder_oldest_wait(struct recorder_ring *ring, uint64_t object, uint32_t *ret_count);

/* recorder_stats.c */

/* The stat of the key, made where there is none; at last the one of its kind. */
struct stall_wait_stat *recorder_stat_take(struct recorder_ring *ring,
					   const struct stall_wait_key *key, uint64_t tag);
struct stall_wait_stat *recorder_stat_find(struct recorder_ring *ring, uint64_t tag);
uint32_t recorder_stat_index(const struct recorder_ring *ring, const struct stall_wait_stat *stat);
bool recorder_stat_is_own(const struct recorder_ring *ring, const struct stall_wait_stat *stat);
void recorder_stat_count(struct stall_wait_stat *stat, uint64_t ns, uint64_t now);

/* recorder_files.c */

void recorder_file_key(const struct recorder_wait *wait, struct stall_wait_key *key,
		       uint32_t *ret_mode);
void recorder_file_name(struct recorder_ring *ring, struct stall_wait_stat *stat, uint64_t tag,
			const struct recorder_wait *wait, uint32_t mode);

/* recorder_stack.c */

/* Copies the stack from sp on, at most `room` bytes, and returns how many. *ret_whole: up to the end
 * of the stack, 0 not known. */
uint32_t recorder_stack_copy(struct recorder_ring *ring, struct recorder_thread *thread,
			     uintptr_t sp, uint8_t *to, uint32_t room, uint64_t *ret_whole);
/* Whether both addresses are on the thread's own stack. */
bool recorder_is_one_stack(struct recorder_thread *thread, uintptr_t a, uintptr_t b);
uint64_t recorder_fs_base(void);
void recorder_regs(const struct recorder_place *place, uint64_t regs[STALL_BPF_PT_REGS]);
void recorder_read_words(uint64_t object, uint8_t words[STALL_RING_WORDS]);
struct stall_ring_stack *recorder_slot_stack(struct recorder_ring *ring, uint32_t index);

/* recorder_marks.c */

void recorder_mark(struct recorder_thread *thread);
void recorder_unmark(struct recorder_thread *thread);
/* Of a thread that died with it. */
void recorder_unmark_slot(struct recorder_ring *ring, struct stall_wait_slot *slot);
/* False: nobody has waited for a word with its hash for that long. */
bool recorder_mark_is_older(uint64_t object, uint64_t since_ns);
void recorder_marks_forget(void);

/* recorder_records.c */

struct recorder_event {
	enum stall_wait_record_type type;
	struct stall_wait_key key;
	uint32_t operation, seq, flags;
	uint64_t start_ns, now_ns, value, size;
	int64_t result;
	const uint8_t *words; /* NULL: not known */
	const struct recorder_place *place;
};
/* False: it was lost, and that was counted. */
bool recorder_record(struct recorder_ring *ring, struct recorder_thread *thread,
		     const struct recorder_event *event);
/* Not too often: a thousand in a second in all, and where `last_ns` is given, one of the stat in a
 * tenth of a second. False was counted. */
bool recorder_is_to_be_told(struct recorder_ring *ring, struct stall_wait_stat *stat, uint32_t role,
			    uint64_t *last_ns, uint64_t now);
/* The first to come after the pause. */
bool recorder_is_due(uint64_t *last_ns, uint64_t now, uint64_t pause_ns);

/* recorder_maps.c */

/* Reads /proc/self/maps again, if that was not done lately. */
void recorder_maps_refresh(struct recorder_ring *ring, uint64_t now);
void recorder_maps_forget(void);

#endif

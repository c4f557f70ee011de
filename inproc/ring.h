/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of the ring: a file of fixed size that libstallscope.so maps in the server and
 * stallscope-probe maps at the same time, without stopping anything. It is consistent at any
 * instant, also when the server is killed in the middle of a write, and stays readable after the
 * server's end.
 *
 * Readers must treat all of it as hostile, and it changes while they read.
 *
 * Locks, waiters and times have the same structures as in the wait programs (waits.h), so that both
 * have one reader:
 *
 *   header | slots | stacks | stats | names | records | maps, twice
 *
 * Each part begins at a multiple of 4096 bytes.
 */
#ifndef STALL_RING_H
#define STALL_RING_H

#include <linux/types.h>

#include "ebpf/waits.h"

#define STALL_RING_MAGIC "STALLRNG"
/* Version 1 had no room for more kinds of waits and causes of loss than it knew. Readers read it, too:
 * a server keeps the library that it was started with. */
#define STALL_RING_VERSION 2
#define STALL_RING_KINDS_1 13
#define STALL_RING_CAUSES_1 11
#define STALL_RING_MAX_KINDS 32
#define STALL_RING_MAX_CAUSES 32
#define STALL_RING_SUFFIX ".ring"
#define STALL_RING_PAGE 4096

#define STALL_RING_MAX_SLOTS 16384
#define STALL_RING_MAX_STATS 16384
#define STALL_RING_MAX_CELLS 16384
#define STALL_RING_MAX_FILE (512ULL << 20)

/* Which function a thread is in (struct stall_wait_slot.operation of FUTEX waits): it implies the
 * type of the object at key.id. FUTEX keys are addresses of pthread objects, not of futex words. */
enum stall_ring_call {
	STALL_RING_MUTEX_LOCK = 1,
	STALL_RING_RWLOCK_RDLOCK,
	STALL_RING_RWLOCK_WRLOCK,
	STALL_RING_COND_WAIT,
	/* Of WAKER records: the releasing call. Their `value` is for how long the longest waiter
	 * has waited, in ns, their `size` how many wait. */
	STALL_RING_MUTEX_UNLOCK,
	STALL_RING_RWLOCK_UNLOCK,
	STALL_RING_COND_SIGNAL,
	STALL_RING_COND_BROADCAST,
};

enum stall_ring_state {
	STALL_RING_LIVE = 1,
	STALL_RING_ENDED, /* the process has exited cleanly */
};

struct stall_ring_header {
	/* Written once, before the file has its name. */
	char magic[8];
	__u32 version;
	__u32 header_size; /* of this struct */
	__u64 file_size;
	__u64 slots_offset;   /* struct stall_wait_slot[slot_count] */
	__u64 stacks_offset;  /* slot_count of stack_stride bytes: struct stall_ring_stack */
	__u64 stats_offset;   /* struct stall_wait_stat[stat_count + kinds], see waits.h */
	__u64 names_offset;   /* struct stall_ring_name[stat_count]: of the files of the stats */
	__u64 records_offset; /* cell_count of cell_stride bytes: struct stall_ring_cell */
	__u64 maps_offset;    /* two of maps_stride bytes: struct stall_ring_maps */
	__u32 slot_count, stack_stride;
	__u32 stat_count; /* a power of two: tag & (stat_count - 1) is the first place */
	__u32 cell_count; /* a power of two */
	__u32 cell_stride, maps_stride;
	__s32 pid; /* in the server's own pid namespace */
	__u32 uid;
	__u64 start_time; /* /proc/self/stat field 22, clock ticks since boot; 0: not known */
	/* st_ino of /proc/self/ns/pid, 0: not known. A reader in the same one that does not see the
	 * pid knows that the server has ended. */
	__u64 pid_namespace;
	__u64 created_ns, created_wall_ns;
	char boot_id[40]; /* /proc/sys/kernel/random/boot_id, "" not known: TIDs of another boot */
	char comm[16];
	char exe[256];	  /* as readlink(/proc/self/exe) gives it; "" unknown */
	char library[16]; /* version of libstallscope.so */
	/* /proc/self/stat field 28, where the stack of this program began: an execve changes neither
	 * pid nor start time. 0: not known, as of rings before it was there. */
	__u64 start_stack;
	/* How many the library knows, from version 2 on: of waits, of stall_wait_lost. */
	__u32 kinds, causes;

	/* Commands: any process that can write the file may change them at any time. */
	__u32 enabled __attribute__((aligned(64))); /* 0: the library passes everything through */
	__u32 reserved;
	__u64 threshold_ns_1[STALL_RING_KINDS_1]; /* of version 1 alone */

	/* Written by the library. */
	__u32 state __attribute__((aligned(64))); /* enum stall_ring_state */
	__u32 slots_used;			  /* all slots in use are below */
	__u32 maps;				  /* which of the two is complete: 0 or 1 */
	__u32 maps_failed; /* errno of the last attempt to read /proc/self/maps, 0: success */
	__u64 waits;	   /* that have begun, roughly: shows whether anything happens at all */
	__u64 lost_1[STALL_RING_CAUSES_1]; /* of version 1 alone */

	__u64 head __attribute__((aligned(64))); /* records begun since the start: tickets */

	/* From version 2 on. Commands, too: */
	__u64 threshold_ns[STALL_RING_MAX_KINDS]
		__attribute__((aligned(64))); /* of END and WAKER */
	/* Written by the library. */
	__u64 lost[STALL_RING_MAX_CAUSES] __attribute__((aligned(64)));
};
/* What every version has, where it has always been. */
#define STALL_RING_HEADER_1 __builtin_offsetof(struct stall_ring_header, threshold_ns)

/* The stack of a slot's wait. It belongs to the wait whose number slot.seq is equal to `seq`, which
 * is written last. A wait for a mutex or rwlock gets one only when it has lasted a while. */
#define STALL_RING_WORDS 48 /* as struct stall_futex: 16 bytes before the object, 32 from it on */
struct stall_ring_stack {
	__u32 seq;
	__u32 size;	/* bytes copied */
	__u64 address;	/* of the first of them */
	__u64 whole;	/* bytes from there to the upper end of the stack, 0: not known */
	__u64 fs_base;	/* pthread_self() */
	__u64 words_ns; /* when `words` were read last, CLOCK_MONOTONIC; 0: never in this wait */
	__u8 words[STALL_RING_WORDS];  /* around the pthread object: its owner */
	__u64 regs[STALL_BPF_PT_REGS]; /* struct pt_regs: bx bp r12 to r15 ip sp, the others 0 */
	__u8 bytes[];
};

/* A slot is of a thread while its tid is not 0. `server` and `outer` of it are unused. */

/* The role of a FUTEX stat is first what the call implies: STALL_ROLE_MUTEX or STALL_ROLE_RWLOCK.
 * For a condition it is STALL_ROLE_UNKNOWN, since a server's own locks sleep on conditions, too,
 * until a reader has unwound a thread that waits there; the reader then writes any role but those
 * two. With STALL_ROLE_COND its waits are only counted. Readers take max_ns by exchanging it for 0,
 * and free a stat as the loader of the wait programs does: tag STALL_TAG_RETIRED, a while later all
 * 0, the tag last. */

struct stall_ring_name {
	__u64 tag;  /* of the stat that it is of: written last */
	__s32 mode; /* st_mode */
	__u32 pad;
	char path[240]; /* /proc/self/fd/N or as the program gave it; its last bytes if longer */
};

/* A record and its stack. `ticket` is 2 * number + 1 while the record is written, 2 * number + 2
 * when it is whole; number & (cell_count - 1) is the cell. A reader that finds a larger number has
 * lost that record. A writer that finds its cell in use gives up (STALL_LOST_RING_FULL). */
struct stall_ring_cell {
	__u64 ticket;
	__u64 whole; /* of the stack, as in struct stall_ring_stack */
	struct stall_wait_record record;
	__u8 words[STALL_RING_WORDS]; /* around the object, when the record was made */
	__u8 stack[];		      /* record.stack_size bytes */
};

/* Lines of /proc/self/maps: those with a path, [stack] and [vdso]. */
struct stall_ring_maps {
	__u32 size;	 /* bytes of text */
	__u32 truncated; /* lines are missing */
	__u64 read_ns;	 /* CLOCK_MONOTONIC */
	char text[];
};

/* A ring of any version is read by the readers of all later ones: nothing in it moves or grows. */
#define STALL_RING_AT(field, offset)                                                               \
	_Static_assert(__builtin_offsetof(struct stall_ring_header, field) == (offset), #field)
STALL_RING_AT(file_size, 16);
STALL_RING_AT(slots_offset, 24);
STALL_RING_AT(slot_count, 72);
STALL_RING_AT(pid, 96);
STALL_RING_AT(start_time, 104);
STALL_RING_AT(boot_id, 136);
STALL_RING_AT(exe, 192);
STALL_RING_AT(start_stack, 464);
STALL_RING_AT(kinds, 472);
STALL_RING_AT(enabled, 512);
STALL_RING_AT(state, 640);
STALL_RING_AT(waits, 656);
STALL_RING_AT(head, 768);
STALL_RING_AT(threshold_ns, 832);
STALL_RING_AT(lost, 1088);
_Static_assert(sizeof(struct stall_ring_header) == 1344, "the header");
_Static_assert(STALL_WAIT_KINDS <= STALL_RING_MAX_KINDS, "room for each kind");
_Static_assert(STALL_LOST_CAUSES <= STALL_RING_MAX_CAUSES, "room for each cause");
_Static_assert(sizeof(struct stall_wait_slot) == 192, "slots");
_Static_assert(sizeof(struct stall_wait_stat) == 448, "stats");
_Static_assert(sizeof(struct stall_wait_record) == 336, "records");
_Static_assert(sizeof(struct stall_ring_stack) == 256, "stacks");
_Static_assert(sizeof(struct stall_ring_cell) == 336 + 16 + STALL_RING_WORDS, "cells");
_Static_assert(sizeof(struct stall_ring_name) == 256, "names");
_Static_assert(sizeof(struct stall_ring_maps) == 16, "maps");
#undef STALL_RING_AT

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The data of the wait programs: shared by the BPF programs and their loader. */
#ifndef STALL_WAITS_BPF_H
#define STALL_WAITS_BPF_H

#ifndef __bpf__
#include <linux/types.h>
#endif

#include "ebpf/threads.h"
#include "generated/wait_tables.h"

/*
 * A wait is the time from the entry of a system call to its return. Each thread has a slot
 * with its current wait; each key (a futex word, a file) has a stat with its histogram.
 * Slots and stats are arrays that user space maps and reads without a system call.
 */
#define STALL_WAIT_BUCKETS                                                                         \
	40 /* bucket n counts waits of 2^n to 2^(n+1)-1 ns; the last all longer */

/* Whether the call returns how many bytes it moved. */
static inline int stall_wait_has_bytes(__u32 kind)
{
	return kind < STALL_WAIT_KINDS && (STALL_WAIT_WITH_BYTES >> kind & 1);
}

/* FUTEX: id is the address of the word. Files: id is the inode number, id2 st_dev in the kernel's
 * encoding (major << 20 | minor) in the upper and i_generation in the lower half. Where only the
 * path is known (UNLINK, RENAME), id is a hash of the path and id2 is 0. */
struct stall_wait_key {
	__u32 tgid; /* in the reader's pid namespace */
	__u32 kind;
	__u64 id, id2;
};

/* A place in a hash table by open addressing: stall_wait_tag(key) & mask is the first place to
 * probe. Behind the table is one stat for each kind, with tgid 0, for what found no place. */
struct stall_wait_stat {
	__u64 tag; /* of the key; 0: free */
	struct stall_wait_key key;
	__u32 role;	  /* of a futex word: set by user space, which unwinds */
	__u32 used;	  /* 0: free, or its key is not written yet */
	__u32 marked;	  /* waits for it that have been long: its wakers are recorded */
	__u32 announced;  /* the record that announces it (FILE, SLOT_FIRST) was sent */
	__u64 retired_ns; /* by user space */
	__u64 listed;	  /* in the list of stats that were ever made */
	/* From here on written by every wait: a cache line of its own. */
	__u64 total_ns;
	__u64 max_ns;
	__u64 bytes;	  /* READ, WRITE, EXTEND */
	__u64 over;	  /* waits over the threshold */
	__u64 not_waited; /* FUTEX: the word had changed (EAGAIN), no wait; not in the histogram */
	__u64 last_ns;	  /* end of the latest, CLOCK_MONOTONIC */
	__u64 limited_ns[2]; /* in a ring: of the latest END and WAKER record that was limited */
	__u64 bucket[STALL_WAIT_BUCKETS]; /* their sum is the count */
};

/* What went to a file: beside the stat of the same index, where the programs count for storage. Then
 * all calls of a file have one stat, whose kind is WRITE; MSYNC and SYNCFS have one each for a
 * process, with id 0. */
struct stall_storage_stat {
	/* Of writes that wrote something. */
	__u64 requests, requested_bytes, write_ns, direct_bytes;
	/* As the kernel charges it: pages that became dirty, and what calls wrote with O_DIRECT. */
	__u64 charged_bytes;
	__u64 mapped_bytes;	   /* of these: by a page fault */
	__u64 async_direct_bytes;  /* written with O_DIRECT, asynchronously */
	__u64 async_dirtied_bytes; /* pages of a file written so that became dirty nevertheless */
	__u64 unsynced_bytes;	   /* written since the latest sync began, not with O_DIRECT */
	__u64 fsyncs, fdatasyncs, dsync_writes, sync_errors;
	__u64 other_syncs, other_sync_ns; /* SYNC_FILE_RANGE, MSYNC, SYNCFS */
	__u64 sync_max_ns;
	/* Of the n bytes and t ns of each sync; products have 128 bits, low half first. */
	__u64 sum_n, sum_t;
	__u64 sum_nn[2], sum_nt[2], sum_tt[2];
	__u64 flags; /* enum stall_storage_flags */
};

enum stall_storage_flags {
	STALL_STORAGE_DIRECT = 1 << 0,	    /* it was written with O_DIRECT */
	STALL_STORAGE_DSYNC = 1 << 1,	    /* with O_SYNC or O_DSYNC */
	STALL_STORAGE_ALWAYS_SYNC = 1 << 2, /* the file (chattr +S) or its mount is synchronous */
	STALL_STORAGE_UNCHARGED = 1 << 3,   /* a file system in memory: nothing is written back */
};

/* What a uprobe in the server last recorded about this thread. It is valid only while the frame it
 * was set in is still on the stack, which the reader checks by return_address at sp. */
struct stall_wait_server {
	__u16 function; /* index of the uprobe + 1; 0: none */
	__u16 prepared; /* not 0: it has recorded the lock that its caller is about to wait for */
	__u32 frame;	/* stall_frame_hash() of what lay above the return address */
	__u64 lock;	/* the lock object, 0 unknown */
	__u64 arg;	/* a second argument, as the uprobe's table says */
	__u64 sp;
	__u64 return_address; /* while `prepared`: the function in which its caller will wait */
};

/* The same of the call around it, for BPF: a thread that is about to wait for a row waits for the
 * mutex of the lock table first. See programs/waits/uprobes.bpf.c. */
struct stall_wait_outer {
	__u32 function;
	__u32 frame;
	__u64 lock, sp, return_address;
};

/* A return address stays on the stack when the call is over, and later calls may leave a hole
 * there. The frame of the caller above it does not change during the call. */
#define STALL_FRAME_WORDS 12
static inline __u32 stall_frame_hash(const __u64 words[STALL_FRAME_WORDS])
{
	__u64 hash = 0;

	for (int i = 0; i < STALL_FRAME_WORDS; i++)
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15 + (hash >> 29);
	return (__u32)(hash >> 32);
}

/* In records; a slot has `reported` and `marked` for the first two. */
enum stall_slot_flags {
	STALL_SLOT_REPORTED = 1 << 0, /* an IN_FLIGHT record was sent for this wait */
	STALL_SLOT_MARKED = 1 << 1,   /* its key is among those whose wakers are recorded */
	STALL_SLOT_ADOPTED = 1 << 2,  /* it was in this call already when the probe was attached */
	/* The first wait on its futex word that ended: an END record with stack, however short it
	 * was, so that user space can identify the word. */
	STALL_SLOT_FIRST = 1 << 3,
	/* An END of asynchronous I/O: no stack, for the thread that submitted it did not wait. Its
	 * operation is the opcode of its kind (struct iocb, io_uring). */
	STALL_SLOT_ASYNC = 1 << 4,
	/* An END with STALL_SLOT_FIRST whose wait has not ended. */
	STALL_SLOT_IN_FLIGHT = 1 << 5,
	/* Only the registers that /proc/PID/task/TID/syscall shows are set. */
	STALL_SLOT_CALL_REGS = 1 << 6,
	/* Where the programs count for storage. */
	STALL_SLOT_DIRECT = 1 << 7, /* a write with O_DIRECT */
	STALL_SLOT_DSYNC = 1 << 8,  /* a write with O_SYNC or O_DSYNC */
};

/* In the operation of a record or slot of FUTEX as readers hand it on: the rest is an enum
 * stall_ring_call, and key.id the address of a pthread object rather than of a futex word. */
#define STALL_OPERATION_OBJECT (1U << 31)

struct stall_wait_slot {
	__u32 seq; /* odd while the thread is in a wait: the same odd number twice, the same wait */
	__u32 reported; /* seq of the last wait that an IN_FLIGHT record was sent for */
	__u32 marked;	/* seq of the wait that is counted in stat.marked; 0: none */
	__u32 stat;	/* index of the key's stat */
	struct stall_wait_key key;
	__u64 start_ns; /* CLOCK_MONOTONIC */
	__u64 regs;	/* address of the pt_regs, for BPF */
	__u32 flags;
	__u32 restart; /* the call will continue as restart_syscall(2) */
	/* The first cache line ends here. */
	__s32 tid, tgid; /* in the reader's pid namespace */
	__s32 ns_tid;	 /* in the thread's own */
	__u32 operation; /* futex operation as it was called; else the system call's number */
	union {
		__u64 value;   /* futex: the expected value; files: offset; else 0 */
		__u64 dirtied; /* counting for storage, of a WRITE: pages that it made dirty */
	};
	union {
		__u64 size; /* READ, WRITE, EXTEND, FALLOCATE: bytes asked for */
		/* Counting for storage. */
		__u64 charged_before; /* of a WRITE: what the thread had been charged */
		__u64 unsynced;	      /* of a sync: bytes that it makes safe */
	};
	__u64 task; /* address of the task_struct, for BPF */
	char comm[STALL_BPF_COMM];
	struct stall_wait_server server;
	struct stall_wait_outer outer;
};

enum stall_wait_record_type {
	STALL_RECORD_END = 1, /* a wait over its threshold (or SLOT_FIRST) has ended; with stack */
	STALL_RECORD_IN_FLIGHT, /* a wait in flight has passed its threshold; no stack */
	STALL_RECORD_WAKER,	/* a thread wakes waiters of a marked key; with stack */
	STALL_RECORD_FILE,	/* the first call on a file; struct stall_wait_file */
	STALL_RECORD_SERVER, /* a uprobe that is an event by itself (a deadlock victim); with stack */
	STALL_RECORD_PROCESS, /* exec, exit of the last thread, fork: `result` is which */
};

enum stall_process_change {
	STALL_PROCESS_EXITED,
	STALL_PROCESS_EXECED,
	STALL_PROCESS_FORKED, /* `value` is the child's pid in the reader's pid namespace */
};

/* Followed by stack_size bytes from stack_address on. */
struct stall_wait_record {
	__u32 magic; /* STALL_BPF_MAGIC */
	__u32 type;
	__s32 tid, tgid, ns_tid; /* WAKER: of the waker */
	__u32 operation;
	struct stall_wait_key key;
	__u64 start_ns;
	__u64 now_ns;
	__s64 result; /* of the system call */
	__u64 value, size;
	__u32 slot, seq; /* IN_FLIGHT, END: which wait, and its (odd) seq */
	__u32 flags;	 /* enum stall_slot_flags */
	__u32 stack_size;
	__u64 stack_address;
	struct stall_wait_server server;
	__u64 regs[STALL_BPF_PT_REGS];
	char comm[STALL_BPF_COMM];
};

#define STALL_FILE_NAMES 8 /* path components from the last one up; enough for a class */
#define STALL_FILE_NAME 64
#define STALL_PATH 256

struct stall_wait_file {
	__u32 magic;
	__u32 type;
	__s32 tid, tgid;
	struct stall_wait_key key; /* kind: of that call */
	__s32 fd;		   /* -1: by path */
	__u32 mode;		   /* i_mode */
	__u32 name_count;
	__u32 pad;
	char names[STALL_FILE_NAMES][STALL_FILE_NAME]; /* last component first */
	char path[STALL_PATH];			       /* by path: as the program gave it */
};

#define STALL_STAT_PLACES 32   /* of the table that are tried for a key */
#define STALL_THREAD_PLACES 16 /* of the hash table of threads that are tried for one */
#define STALL_TAG_RETIRED (~0ULL)

/* A thread that is ignored has a place in the table of threads, and instead of a slot a number from
 * here on: no lookup of a slot finds one, so that other threads are checked for nothing. */
#define STALL_IGNORED 0xffffff00U
#define STALL_MAX_IGNORED 64 /* a power of two */

struct stall_ignored {
	__u64 start_time; /* of its thread: its number may be another thread's later */
	__u32 tid;	  /* the kernel's number; 0: free */
	__u32 seen;	  /* number of the latest pass that saw it */
};

/* Not 0. Equal tags count as equal keys: 64 bits, for a few thousand keys. */
static inline __u64 stall_wait_tag(const struct stall_wait_key *key)
{
	__u64 tag =
		(key->id ^ (__u64)key->tgid << 40 ^ (__u64)key->kind << 58) * 0x9e3779b97f4a7c15;

	tag ^= tag >> 32;
	tag = (tag ^ key->id2) * 0xbf58476d1ce4e5b9;
	tag ^= tag >> 32;
	return tag && tag != STALL_TAG_RETIRED ? tag : 1;
}

/* Followed to the bits: these are read by both sides. */
_Static_assert(sizeof(struct stall_wait_key) == 24, "no holes");
_Static_assert(sizeof(struct stall_wait_server) == 40, "no holes");
_Static_assert(sizeof(struct stall_wait_outer) == 32, "no holes");
_Static_assert(sizeof(struct stall_ignored) == 16, "no holes");
_Static_assert(sizeof(struct stall_wait_stat) == 64 + 64 + STALL_WAIT_BUCKETS * 8, "cache lines");
_Static_assert(sizeof(struct stall_wait_slot) == 3 * 64, "cache lines");
_Static_assert(sizeof(struct stall_storage_stat) == 25 * 8, "no holes");
_Static_assert(sizeof(struct stall_wait_record) ==
		       24 + 24 + 40 + 16 + 8 + 40 + STALL_BPF_PT_REGS * 8 + 16,
	       "no holes: what leaves the kernel is all set");
_Static_assert(sizeof(struct stall_wait_file) ==
		       16 + 24 + 16 + STALL_FILE_NAMES * STALL_FILE_NAME + STALL_PATH,
	       "no holes");

#endif

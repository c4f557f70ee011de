// SPDX-License-Identifier: Apache-2.0
// Loads waits.bpf.c, attaches what this kernel has, and hands on what it says. Nothing here unwinds
// or names anything.
#ifndef STALL_WAITS_LOADER_H
#define STALL_WAITS_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/waits.h"
#include "ebpf/waits_common.h"

struct stall_bpf_waits_options {
	uint32_t kinds;				 // bit of each enum stall_wait_kind that is wanted
	uint64_t threshold_ns[STALL_WAIT_KINDS]; // can be changed later
	uint32_t max_threads;			 // slots, default 16384
	uint32_t max_keys;			 // stats, default 16384
	uint32_t ring_bytes;			 // a power of two, default 16 MiB
	uint32_t stack_bytes;	     // copied of a stack, at most 32 KiB, which is the default
	uint32_t records_per_second; // of END and WAKER, 17 us each; default 1000
	bool no_timer;		     // as where the kernel has no BPF timers
	bool force;		     // where the kernel is known to crash: none is, of these
};
void stall_bpf_waits_options_init(struct stall_bpf_waits_options *options);

struct stall_bpf_waits;

struct stall_error *stall_bpf_waits_create(const struct stall_bpf_waits_options *options,
					   struct stall_bpf_waits **ret);
void stall_bpf_waits_destroy(struct stall_bpf_waits *waits); // NULL is fine

const struct stall_wait_probe *stall_bpf_waits_probes(const struct stall_bpf_waits *waits,
						      size_t *ret_count);
bool stall_bpf_waits_has_timer(const struct stall_bpf_waits *waits);

// Begins to watch a process (a pid in our pid namespace). Waits that go on already are adopted:
// their start is then the moment of this call.
struct stall_error *stall_bpf_waits_add(struct stall_bpf_waits *waits, pid_t pid);
void stall_bpf_waits_remove(struct stall_bpf_waits *waits, pid_t pid);

void stall_bpf_waits_set_threshold(struct stall_bpf_waits *waits, enum stall_wait_kind kind,
				   uint64_t ns);

// Readable when there are records.
int stall_bpf_waits_fd(const struct stall_bpf_waits *waits);

// Hands on all records that are there, at most `max` (0: all). Returns how many, or an error.
struct stall_error *stall_bpf_waits_consume(struct stall_bpf_waits *waits,
					    const struct stall_wait_handler *handler, size_t max,
					    size_t *ret_count);

// Where there is no timer: does once what it would do. Call it every millisecond or so; its records
// come by stall_bpf_waits_consume.
struct stall_error *stall_bpf_waits_scan(struct stall_bpf_waits *waits);

// The mapped arrays. `count` is how many may be in use; a slot is read as by a seqlock: seq, then
// the rest, then seq again. Stats: used != 0, anywhere; slot.stat is the index of that of its wait.
const volatile struct stall_wait_slot *stall_bpf_waits_slots(const struct stall_bpf_waits *waits,
							     size_t *ret_count);
const volatile struct stall_wait_stat *stall_bpf_waits_stats(const struct stall_bpf_waits *waits,
							     size_t *ret_count);
// Says what a futex word is; for all waits on it from now on.
void stall_bpf_waits_set_role(struct stall_bpf_waits *waits, const struct stall_wait_key *key,
			      enum stall_wait_role role);
// The longest wait of a stat since this was last called; max_ns begins anew.
uint64_t stall_bpf_waits_take_max(struct stall_bpf_waits *waits, size_t stat);
// Frees a stat that nothing has used for a while, so that there is room for others. False where it
// is in use after all, and at the first call, after which no new wait finds it: call again after
// 100 ms or more. Then its last values are in *ret.
bool stall_bpf_waits_retire(struct stall_bpf_waits *waits, size_t stat,
			    struct stall_wait_stat *ret);

// Since the start, by cause.
void stall_bpf_waits_lost(struct stall_bpf_waits *waits, uint64_t ret[STALL_LOST_CAUSES]);

// A uprobe on an instruction of a file (file offset, not virtual address), for one process.
// `lock_arg`, `second_arg`: which argument (1 to 6) holds them, 0 none. `event`: it is a record by
// itself (STALL_RECORD_SERVER), not the way into a wait. `prepares`: the wait is not in this call,
// but in the next that its caller makes, to a function that begins `next_call` bytes further on.
struct stall_bpf_uprobe {
	pid_t pid;
	const char *path; // that opens the very file, e.g. /proc/PID/map_files/...
	uint64_t file_offset;
	uint32_t function; // index into the caller's table; comes back + 1 in stall_wait_server
	uint8_t lock_arg, second_arg;
	bool event, prepares;
	int32_t next_call;
};
#define STALL_BPF_UPROBE_FUNCTIONS 64
struct stall_error *stall_bpf_waits_add_uprobe(struct stall_bpf_waits *waits,
					       const struct stall_bpf_uprobe *uprobe);
// Those of a process that has ended, or with pid 0 those of a function in all processes.
void stall_bpf_waits_remove_uprobes(struct stall_bpf_waits *waits, pid_t pid, uint32_t function);
void stall_bpf_waits_remove_all_uprobes(struct stall_bpf_waits *waits);
// How many of a function there are.
uint32_t stall_bpf_waits_uprobe_places(const struct stall_bpf_waits *waits, uint32_t function);
// Times that the uprobes of a function were hit.
uint64_t stall_bpf_waits_uprobe_hits(const struct stall_bpf_waits *waits, uint32_t function);

#endif

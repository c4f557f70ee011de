// SPDX-License-Identifier: Apache-2.0
// What the wait programs report: records, slots of waits, and counts of locks and files.
#ifndef STALL_WAITS_READ_H
#define STALL_WAITS_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ebpf/wait_handler.h"
#include "ebpf/waits.h"

struct stall_bpf_waits;

// Readable when there are records.
int stall_bpf_waits_fd(const struct stall_bpf_waits *waits);

// Delivers all records that are there, at most `max` (0: all). Returns how many, or an error.
struct stall_error *stall_bpf_waits_consume(struct stall_bpf_waits *waits,
					    const struct stall_wait_handler *handler, size_t max,
					    size_t *ret_count);

// Where there is no timer: does its work once. Call it about every millisecond;
// stall_bpf_waits_consume delivers the records.
struct stall_error *stall_bpf_waits_scan(struct stall_bpf_waits *waits);

// The mapped arrays. `count` is how many may be in use; read a slot like a seqlock: seq, then the
// rest, then seq again. Stats: used != 0, anywhere; slot.stat is the index of that of its wait.
const volatile struct stall_wait_slot *stall_bpf_waits_slots(const struct stall_bpf_waits *waits,
							     size_t *ret_count);
const volatile struct stall_wait_stat *stall_bpf_waits_stats(const struct stall_bpf_waits *waits,
							     size_t *ret_count);
// The stats that were ever made, by a number below this count: much fewer than all.
size_t stall_bpf_waits_made_count(const struct stall_bpf_waits *waits);
// The index of such a stat. False: it is not known yet.
bool stall_bpf_waits_made_stat(const struct stall_bpf_waits *waits, size_t number, size_t *ret);
// The index of the stat of a key.
bool stall_bpf_waits_find(const struct stall_bpf_waits *waits, const struct stall_wait_key *key,
			  size_t *ret);
// Sets the role of a futex word, for all waits on it from now on.
void stall_bpf_waits_set_role(struct stall_bpf_waits *waits, const struct stall_wait_key *key,
			      enum stall_wait_role role);
// The first wait of this stat was reported.
void stall_bpf_waits_announce(struct stall_bpf_waits *waits, size_t stat);
// The longest wait of a stat since this was last called; max_ns starts again.
uint64_t stall_bpf_waits_take_max(struct stall_bpf_waits *waits, size_t stat);
// Frees a stat that has not been used for a while, to make room for others. The first call hides it
// from new waits and returns false: call again after 100 ms or more, which sets *ret to its last
// values. Also false where it is in use after all.
bool stall_bpf_waits_retire(struct stall_bpf_waits *waits, size_t stat,
			    struct stall_wait_stat *ret);

// Since the start, by cause.
void stall_bpf_waits_lost(struct stall_bpf_waits *waits, uint64_t ret[STALL_LOST_CAUSES]);

// What libbpf calls for each record.
int stall_bpf_waits_take_record(void *waits, void *data, size_t size);
int stall_bpf_waits_take_alarm(void *waits, void *data, size_t size);

#endif

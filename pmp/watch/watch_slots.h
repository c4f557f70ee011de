// SPDX-License-Identifier: Apache-2.0
// The threads that wait now, by the slots of the source.
#ifndef STALL_WATCH_SLOTS_H
#define STALL_WATCH_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ebpf/waits.h"

struct stall_watch;

// Threads that wait for the same lock or file as this wait (an event's or alarm's `wait`), itself
// included; 0: it is over.
uint32_t stall_watch_still_waiting(struct stall_watch *watch, uint64_t wait);
// Whether it is over, and its record is more than a moment old: a capture was taken for another
// wait since, or a batch of stacks unwound. Then it takes no capture.
bool stall_watch_is_stale(const struct stall_watch *watch, uint64_t wait, uint64_t received_ns);

// Makes room for all present slots.
struct stall_error *stall_watch_slots_grow(struct stall_watch *watch);
// Threads that wait for the lock or file of this key, at least 1.
uint32_t stall_watch_waiters(struct stall_watch *watch, const struct stall_wait_key *key);
// Whether a thread is known to wait for it.
bool stall_watch_is_waited_for(struct stall_watch *watch, const struct stall_wait_key *key);
// Moves a thread that was counted for its word to the lock of this key.
void stall_watch_one_more_waits(struct stall_watch *watch, const struct stall_wait_key *key);
// Sets in each entry of the table how many wait for it, and for how long.
void stall_watch_count_in_flight(struct stall_watch *watch, uint64_t now_ns);

#endif

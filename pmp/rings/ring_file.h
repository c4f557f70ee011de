// SPDX-License-Identifier: Apache-2.0
// Reads the ring of libstallscope.so, of a live server or of one that has ended. Nothing in it is
// trusted: sizes are checked once, and every value is copied before it is used. A file that is cut
// while it is mapped reads as zeros from there on.
#ifndef STALL_RING_FILE_H
#define STALL_RING_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "inproc/ring.h"

struct stall_ring;

// Times are nanoseconds of CLOCK_MONOTONIC. Anything later than this (in 146 years) is invalid.
#define STALL_RING_MAX_TIME (UINT64_C(1) << 62)

// `writable`: to set thresholds, the switch, roles and retirement of stats. A file that cannot be
// written is opened for reading, and stall_ring_is_writable() returns false.
struct stall_error *stall_ring_open(const char *path, bool writable, struct stall_ring **ret);
// By a name in a folder that is open; `path` is for messages.
struct stall_error *stall_ring_open_at(int folder, const char *name, const char *path,
				       bool writable, struct stall_ring **ret);
// Opens the ring of an open file, for reading only. `path` is for messages. Takes the descriptor
// over, also where it fails.
struct stall_error *stall_ring_open_fd(int fd, const char *path, struct stall_ring **ret);
void stall_ring_close(struct stall_ring *ring); // NULL is fine
static inline void stall_ring_closep(struct stall_ring **ring)
{
	stall_ring_close(*ring);
}

bool stall_ring_is_writable(const struct stall_ring *ring);
// The file was cut, or a page of it cannot be read: zeros were read.
bool stall_ring_was_cut(const struct stall_ring *ring);
const char *stall_ring_path(const struct stall_ring *ring);
int stall_ring_fd(const struct stall_ring *ring);      // the ring's own
uid_t stall_ring_owner(const struct stall_ring *ring); // of the file, when it was opened
// A copy of the header's constant part, checked; strings end.
const struct stall_ring_header *stall_ring_header(const struct stall_ring *ring);
// The header as it is now: `enabled`, `head`, `state`. Thresholds and losses: below.
volatile struct stall_ring_header *stall_ring_live(const struct stall_ring *ring);

// The library may be older or newer than this program. What it does not know: a threshold that no wait
// passes and that cannot be set, and no losses.
uint32_t stall_ring_kinds(const struct stall_ring *ring); // that both know
uint64_t stall_ring_threshold(const struct stall_ring *ring, uint32_t kind);
void stall_ring_set_threshold(const struct stall_ring *ring, uint32_t kind, uint64_t ns);
uint64_t stall_ring_lost(const struct stall_ring *ring, uint32_t cause);

// The start of the next page, at `offset` or behind, that has been written to: the file has holes,
// and reading one through the mapping would fill it. UINT64_MAX: there is none.
uint64_t stall_ring_next_data(const struct stall_ring *ring, uint64_t offset);

// Arrays in the mapping, to be read like those of the BPF programs (waits_read.h). *ret_count of
// slots: those that have been in use.
const volatile struct stall_wait_slot *stall_ring_slots(const struct stall_ring *ring,
							size_t *ret_count);
volatile struct stall_wait_stat *stall_ring_stats(const struct stall_ring *ring, size_t *ret_count);

// A consistent copy of a slot, in one wait or in none. False: it changed in each attempt. The name
// is terminated.
bool stall_ring_read_slot(const struct stall_ring *ring, size_t slot, struct stall_wait_slot *ret);

// The stack of the wait `seq` of a slot: afterwards the slot was still in that wait, and the copy
// is consistent. False: it has none (yet), or the wait is over. `stack` has room for `room` bytes;
// ret->size is the number of bytes.
struct stall_ring_stack_copy {
	uint32_t size;
	uint64_t address, whole, fs_base, words_ns;
	uint8_t words[STALL_RING_WORDS];
	__u64 regs[STALL_BPF_PT_REGS];
};
bool stall_ring_read_stack(const struct stall_ring *ring, size_t slot, uint32_t seq,
			   struct stall_ring_stack_copy *ret, uint8_t *stack, size_t room);
size_t stall_ring_max_stack(const struct stall_ring *ring);

// A copy of the name of the file of a stat, terminated; false: it has none.
bool stall_ring_read_name(const struct stall_ring *ring, size_t stat, uint64_t tag,
			  struct stall_ring_name *ret);

// Reads the next record from *cursor on and advances *cursor; *cursor 0: from the oldest record.
// False: there is none; or, where *cursor is still below the header's `head`, the next one is being
// written. A record that stays so for a second (its writer gave up, or ended) is skipped then; a
// reader of the ring of a server that has ended skips it at once by ++*cursor. Adds to *ret_lost
// the records that were overwritten before they were read.
struct stall_ring_record_copy {
	struct stall_wait_record record; // stack_size is what was copied; the name ends
	uint64_t whole;
	uint8_t words[STALL_RING_WORDS];
};
bool stall_ring_next_record(struct stall_ring *ring, uint64_t *cursor, uint64_t *ret_lost,
			    struct stall_ring_record_copy *ret, uint8_t *stack, size_t room);
size_t stall_ring_max_record_stack(const struct stall_ring *ring);

// The text of the server's mappings, '\0' at its end; free *ret. *ret_read_ns: when it was read, 0:
// never. *ret_truncated: lines are missing.
struct stall_error *stall_ring_read_maps(const struct stall_ring *ring, char **ret,
					 uint64_t *ret_read_ns, bool *ret_truncated);

#endif

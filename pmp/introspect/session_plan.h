// SPDX-License-Identifier: Apache-2.0
// A layout of connections, ready for use: which words of an object are read, and where they are.
#ifndef STALL_SESSION_PLAN_H
#define STALL_SESSION_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/layout.h"

#define STALL_SESSION_RANGES 64

// The clocks of `thd.start` and `thd.idle`: microseconds, or seconds with microseconds in the next word.
enum { CLOCK_REALTIME_US, CLOCK_MONOTONIC_US, CLOCK_REALTIME_SECONDS };

enum stall_session_word {
	WORD_SELF,
	WORD_SELF_2,
	WORD_SELF_3,
	WORD_ID,
	WORD_ID_2,
	WORD_ID_3,
	WORD_QUERY,
	WORD_QUERY_LENGTH,
	WORD_COMMAND,
	WORD_STATUS,
	WORD_START,
	WORD_IDLE,
	WORD_LAST,
	WORD_BEGUN,
	WORD_TRX,
	WORD_USER,
	WORD_USER_2,
	WORD_USER_3,
	WORD_HOST,
	WORD_HOST_2,
	WORD_HOST_3,
	WORD_DATABASE,
	WORD_DATABASE_2,
	WORD_DATABASE_3,
	WORD_STATE,
	WORD_STATE_2,
	WORD_STATE_3,
	WORDS,
};

struct stall_session_range {
	uint32_t offset, size;
};

// Parts of an object that are read at once, one behind the other, and where each word is in them.
struct stall_session_ranges {
	struct stall_session_range ranges[STALL_SESSION_RANGES];
	size_t count;
	size_t size;	      // of all ranges
	int32_t place[WORDS]; // -1: not in them
};

// The layout, ready for use.
struct stall_session_plan {
	int64_t place;
	int64_t offset[WORDS];			      // -1: not known
	bool counted[WORDS];			      // a length of 4 bytes follows the pointer
	int64_t last_second, last_delta, last_length; // -1: none
	int64_t last_begun;			      // in the second object; -1: none
	int64_t trx_second, trx_id;		      // -1: none
	int64_t clock, idle_clock;		      // of `start` and `idle`: CLOCK_*
	// What is read; and what is read again, behind the texts: if it is the same, they are of
	// this connection and this statement.
	struct stall_session_ranges first, again;
};

// False: the layout has not what is needed.
bool stall_session_plan_make(const struct stall_layout *layout, struct stall_session_plan *ret);
// A word of an object, whose first ranges are in `bytes`; 0 where it is not known.
uint64_t stall_session_word_of(const struct stall_session_plan *plan, const uint8_t *bytes,
			       enum stall_session_word word);
// The 4 bytes behind a pointer.
uint32_t stall_session_length_of(const struct stall_session_plan *plan, const uint8_t *bytes,
				 enum stall_session_word word);
// Whether the words that say what is where were the same when they were read again.
bool stall_session_is_same(const struct stall_session_plan *plan, const uint8_t *first,
			   const uint8_t *again);

#endif

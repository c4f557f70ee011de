// SPDX-License-Identifier: Apache-2.0
// A change to a live process that can be undone: one aligned word of its memory, or O_DIRECT on
// files that it has open. No thread is stopped, nothing is called in the process, and nothing is
// attached to it.
#ifndef STALL_POKE_H
#define STALL_POKE_H

#include "base/error.h"
#include "poke/poke_change.h"

enum stall_poke_state {
	STALL_POKE_OLD,	  // as before the poke
	STALL_POKE_NEW,	  // as the poke sets it
	STALL_POKE_OTHER, // a word: somebody else changed it. Files: some are as before
};

// What must be so before the first write: the word is aligned, in memory that is writable and
// private to the process; the files take writes in blocks of STALL_POKE_MAX_BLOCK bytes.
struct stall_error *stall_poke_check(const struct stall_poke *poke);

struct stall_error *stall_poke_state(const struct stall_poke *poke, enum stall_poke_state *ret);

// From the old state to the new one. Refused where it is in any other. Where some files fail, the
// others are set back.
struct stall_error *stall_poke_set(const struct stall_poke *poke);

// From the new state to the old one. *ret_found: the state before. STALL_ERROR_AGAIN: the word holds
// neither value, and is left alone. A file that the process has closed counts as undone.
struct stall_error *stall_poke_undo(const struct stall_poke *poke,
				    enum stall_poke_state *ret_found);

#endif

// SPDX-License-Identifier: Apache-2.0
// Lock words as the waiters have read them, checked against releases and owners.
#ifndef STALL_RING_WORDS_H
#define STALL_RING_WORDS_H

#include "rings/ring_releases.h"
#include "rings/ring_threads.h"

// Adds the words of the objects that threads of the process wait for, as the waiters have read
// them: `stable` where the last two reads agree, or there is only one, no release since then is
// known, and the owner has not begun to wait since.
struct stall_error *stall_ring_words_add(struct stall_snapshot *snapshot, uint32_t process,
					 const struct stall_ring_threads *threads,
					 const struct stall_ring_releases *releases);

#endif

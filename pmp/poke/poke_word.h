// SPDX-License-Identifier: Apache-2.0
// One aligned word in the memory of a live process.
#ifndef STALL_POKE_WORD_H
#define STALL_POKE_WORD_H

#include "base/error.h"
#include "poke/poke_change.h"

// ADDRESS:SIZE:OLD:NEW, hexadecimal but the size.
struct stall_error *stall_poke_word_parse(const char *text, struct stall_poke_word *ret);

struct stall_error *stall_poke_word_check(const struct stall_poke_process *process,
					  const struct stall_poke_word *word);
struct stall_error *stall_poke_word_read(const struct stall_poke_process *process,
					 const struct stall_poke_word *word, uint64_t *ret);
// Checks whose memory it is, and that it is writable and private, before the write.
// STALL_ERROR_AGAIN: it does not hold `from`, or holds something else right after the write.
struct stall_error *stall_poke_word_change(const struct stall_poke_process *process,
					   const struct stall_poke_word *word, uint64_t from,
					   uint64_t to);

#endif

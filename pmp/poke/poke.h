// SPDX-License-Identifier: Apache-2.0
// A change to a live process that can be undone: one aligned word of its memory, or O_DIRECT on
// files that it has open. No thread is stopped, nothing is called in the process, and nothing is
// attached to it.
#ifndef STALL_POKE_H
#define STALL_POKE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "poke/poke_process.h"

#define STALL_POKE_MAX_FILES 64
#define STALL_POKE_MAX_BLOCK 512 // bytes that a write may have to be aligned to

struct stall_poke_word {
	uint64_t address;
	unsigned int size; // 1, 2, 4 or 8
	uint64_t old_value, new_value;
};

struct stall_poke_file {
	int fd; // of the process
	uint64_t dev, ino;
};

struct stall_poke {
	struct stall_target target;  // the caller's
	struct stall_poke_word word; // size 0: files
	struct stall_poke_file files[STALL_POKE_MAX_FILES];
	size_t file_count;
};

enum stall_poke_state {
	STALL_POKE_OLD,	  // as before the poke
	STALL_POKE_NEW,	  // as the poke sets it
	STALL_POKE_OTHER, // a word: somebody else changed it. Files: some are as before
};

// ADDRESS:SIZE:OLD:NEW, hexadecimal but the size. FD:DEV:INO, decimal.
struct stall_error *stall_poke_word_parse(const char *text, struct stall_poke_word *ret);
struct stall_error *stall_poke_file_parse(const char *text, struct stall_poke_file *ret);

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

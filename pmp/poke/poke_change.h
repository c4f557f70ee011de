// SPDX-License-Identifier: Apache-2.0
// What a poke changes: a word, or files.
#ifndef STALL_POKE_CHANGE_H
#define STALL_POKE_CHANGE_H

#include <stddef.h>
#include <stdint.h>

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
	struct stall_poke_process process; // its descriptors are the caller's
	struct stall_poke_word word;	   // size 0: files
	struct stall_poke_file files[STALL_POKE_MAX_FILES];
	size_t file_count;
};

#endif

// SPDX-License-Identifier: Apache-2.0
// Makes a pack of an ELF file. The file is hostile: it is read in a child without privileges.
#ifndef STALL_PACK_MAKE_H
#define STALL_PACK_MAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/output.h"
#include "unwind/pack_format.h"

#define STALL_PACK_MAX_TEXT 4096

// What the pack has, for the caller.
struct stall_pack_summary {
	char identity[STALL_IDENTITY_MAX];
	char debug_file
		[STALL_PACK_MAX_TEXT]; // what was read instead of the file; "": the file itself
	char layouts_missing[256];     // why there are none, or not all; "": they are there
	uint8_t symbols;	       // enum stall_pack_symbols
	uint32_t functions, objects, layouts, structures;
	uint64_t bytes;
};

// Writes the pack of `path`, or of its separate debug file if that has the symbols. `debug_dir` may
// be NULL. *ret_missing as of stall_sandbox_enter().
struct stall_error *stall_pack_make(const char *path, const char *debug_dir,
				    struct stall_output *output, struct stall_pack_summary *ret,
				    unsigned int *ret_missing);

#endif

// SPDX-License-Identifier: Apache-2.0
// The command "pack".
#ifndef STALL_PACK_COMMAND_H
#define STALL_PACK_COMMAND_H

#include <stdbool.h>

#include "base/error.h"

struct stall_pack_options {
	const char *file, *output;
	const char *debug_dir; // may be NULL
	bool force_overwrite;
};

// Makes the pack and writes a JSON line about it to `out`.
struct stall_error *stall_pack_run(const struct stall_pack_options *options, int out);

#endif

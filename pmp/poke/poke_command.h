// SPDX-License-Identifier: Apache-2.0
// What a change to a live process would find, the change, and its undoing.
#ifndef STALL_POKE_COMMAND_H
#define STALL_POKE_COMMAND_H

#include "base/error.h"
#include "poke/poke_options.h"

// Writes a JSON line.
struct stall_error *stall_poke_run(const struct stall_poke_options *options, int out);

#endif

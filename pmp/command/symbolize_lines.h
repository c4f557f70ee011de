// SPDX-License-Identifier: Apache-2.0
// The command "symbolize": one request a line in, one JSON object a line out.
#ifndef STALL_SYMBOLIZE_LINES_H
#define STALL_SYMBOLIZE_LINES_H

#include <stddef.h>

#include "base/error.h"

struct stall_error *stall_symbolize_lines(const char *const *debug_dirs, size_t count, int in,
					  int out);

#endif

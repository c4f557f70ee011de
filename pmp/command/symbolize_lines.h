// SPDX-License-Identifier: Apache-2.0
// The command "symbolize": one request a line in, one JSON object a line out.
#ifndef STALL_SYMBOLIZE_LINES_H
#define STALL_SYMBOLIZE_LINES_H

#include "base/error.h"
#include "unwind/symbolize.h"

struct stall_error *stall_symbolize_lines(const struct stall_symbolizer_options *options, int in,
					  int out);

#endif

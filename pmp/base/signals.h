// SPDX-License-Identifier: Apache-2.0
// Signals as events of a loop.
#ifndef STALL_SIGNALS_H
#define STALL_SIGNALS_H

#include "base/error.h"

// SIGINT and SIGTERM no longer end the process: the descriptor becomes readable. The caller closes
// it.
struct stall_error *stall_signals_block(int *ret_fd);

#endif

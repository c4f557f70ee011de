// SPDX-License-Identifier: Apache-2.0
// Threads that are not polled.
#ifndef STALL_POLL_IGNORE_H
#define STALL_POLL_IGNORE_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "sources/poller.h"

// Ignores a thread until it ends, or polls it again. `tid`: its number in its own pid namespace. Takes
// the lock itself. STALL_ERROR_NO_PROCESS: there is no thread to ignore.
struct stall_error *stall_poller_ignore(struct stall_poller *poller, pid_t pid, pid_t tid, bool on);

#endif

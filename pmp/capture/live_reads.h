// SPDX-License-Identifier: Apache-2.0
// Stacks that go on outside of their copies (a signal's own stack, a coroutine's, more than
// --max-stack): that memory is read while the unwinder meets it, later than the copy.
#ifndef STALL_LIVE_READS_H
#define STALL_LIVE_READS_H

#include "base/error.h"
#include "snapshot/backend.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

// Keeps the labels of those whose threads did not run until all was read; labels the others raced.
// Looks at the target only if there are any.
struct stall_error *stall_live_reads_check(struct stall_snapshot *snapshot,
					   const struct stall_unwound *unwound,
					   const struct stall_backend *backend, void *state);

#endif

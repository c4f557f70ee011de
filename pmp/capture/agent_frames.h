// SPDX-License-Identifier: Apache-2.0
// The frames that libstallscope.so adds to the stacks of threads.
#ifndef STALL_AGENT_FRAMES_H
#define STALL_AGENT_FRAMES_H

#include "snapshot/snapshot.h"
#include "unwind/worker.h"

// Takes its frames away, wherever they are, but for the outermost of each run of them: the function
// that it stands in for, as the program called it.
struct stall_error *stall_agent_frames_drop(const struct stall_snapshot *snapshot,
					    struct stall_unwound *unwound);

#endif

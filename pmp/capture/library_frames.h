// SPDX-License-Identifier: Apache-2.0
// The frames that libstallscope.so adds to the stacks of threads.
#ifndef STALL_LIBRARY_FRAMES_H
#define STALL_LIBRARY_FRAMES_H

#include "snapshot/snapshot.h"
#include "unwind/worker.h"

// Removes its frames, wherever they are, except for the outermost of each run of them: that frame
// is the function that the program called.
struct stall_error *stall_library_frames_drop(const struct stall_snapshot *snapshot,
					      struct stall_unwound *unwound);

#endif

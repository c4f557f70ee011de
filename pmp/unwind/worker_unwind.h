// SPDX-License-Identifier: Apache-2.0
// The job of the worker that unwinds the copied stacks and names their frames.
#ifndef STALL_WORKER_UNWIND_H
#define STALL_WORKER_UNWIND_H

#include "unwind/worker_state.h"

void stall_worker_job_unwind(struct stall_worker_state *state);

#endif

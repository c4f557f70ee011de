// SPDX-License-Identifier: Apache-2.0
// Jobs of the worker that look names and addresses up: worker.h says what each brings.
#ifndef STALL_WORKER_QUERIES_H
#define STALL_WORKER_QUERIES_H

#include "unwind/worker_state.h"

void stall_worker_job_name_data(struct stall_worker_state *state);
void stall_worker_job_find_data(struct stall_worker_state *state);
void stall_worker_job_find_functions(struct stall_worker_state *state);

#endif

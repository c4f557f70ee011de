// SPDX-License-Identifier: Apache-2.0
// Jobs of the worker that look up names and addresses: worker.h has what each returns.
#ifndef STALL_WORKER_QUERIES_H
#define STALL_WORKER_QUERIES_H

#include "unwind/worker_state.h"

void stall_worker_job_name_data(struct stall_worker_state *state);
void stall_worker_job_find_data(struct stall_worker_state *state);
void stall_worker_job_find_functions(struct stall_worker_state *state);

#endif

// SPDX-License-Identifier: Apache-2.0
// Checks the worker's results in the region.
#ifndef STALL_WORKER_RESULT_H
#define STALL_WORKER_RESULT_H

#include "unwind/unwound.h"
#include "unwind/worker_job.h"

// A checked copy of the worker's results, complete or not.
struct stall_error *stall_result_read(const struct stall_job_layout *layout,
				      struct stall_unwound *ret);
// The strings of a result: a private copy, NUL-terminated, without control characters.
struct stall_error *stall_result_strings(const struct stall_job_layout *layout, char **ret,
					 size_t *ret_size);
const char *stall_result_string(const char *strings, size_t size, uint32_t at);

#endif

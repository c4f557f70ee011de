// SPDX-License-Identifier: Apache-2.0
// Which source of waits is taken.
#ifndef STALL_CHOOSE_SOURCE_H
#define STALL_CHOOSE_SOURCE_H

#include <sys/types.h>

#include "waits/wait_source.h"

void stall_wait_source_options_init(struct stall_wait_source_options *options);

// `pids`: of the processes that will be watched. Of itself it takes the wait programs where they work, else
// rings where all of these have one, else /proc.
struct stall_error *stall_wait_source_init(struct stall_wait_source *source,
					   const struct stall_wait_source_options *options,
					   const pid_t *pids, size_t pid_count);
void stall_wait_source_deinit(struct stall_wait_source *source);

#endif

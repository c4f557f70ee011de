// SPDX-License-Identifier: Apache-2.0
// `stallscope-probe rings`: the rings of libstallscope.so, and the few words of one that others set.
#ifndef STALL_RINGS_COMMAND_H
#define STALL_RINGS_COMMAND_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "waits/wait_source.h"

#define STALL_MAX_NAMED_RINGS 256

enum stall_recording {
	STALL_RECORDING_AS_IT_IS,
	STALL_RECORDING_ON,
	STALL_RECORDING_OFF,
};

struct stall_rings_options {
	const char *paths[STALL_MAX_NAMED_RINGS];
	size_t path_count;
	enum stall_recording recording; // of the rings at `paths`
};

// Writes a JSON line for each ring: those named, those of the processes, or all. Sets those named
// first, where the options say so: recording, and the thresholds that `source` was asked for.
struct stall_error *stall_rings_run(const struct stall_rings_options *options, const pid_t *pids,
				    size_t pid_count,
				    const struct stall_wait_source_options *source, int out);

#endif

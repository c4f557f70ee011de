// SPDX-License-Identifier: Apache-2.0
// What this machine offers to this user. Each feature is tried, none is guessed from a version.
#ifndef STALL_FEATURE_PROBES_H
#define STALL_FEATURE_PROBES_H

#include <stddef.h>

#include "error.h"

struct stall_feature {
	const char *name;
	// NULL where it works; else the message says why not and, behind "; ", how to mend it.
	struct stall_error *(*probe)(void);
};

extern const struct stall_feature stall_features[];
extern const size_t stall_feature_count;

// ebpf/bpf_features.c and ebpf/waits_features.c, where the program is built with BPF.
extern const struct stall_feature stall_bpf_features[];
extern const size_t stall_bpf_feature_count;
extern const struct stall_feature stall_waits_features[];
extern const size_t stall_waits_feature_count;

#endif

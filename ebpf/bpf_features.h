// SPDX-License-Identifier: Apache-2.0
// Which parts of BPF work here, by trying: stacks and kernel names (bpf_features.c), waits
// (waits_features.c).
#ifndef STALL_BPF_FEATURES_H
#define STALL_BPF_FEATURES_H

#include "base/features.h"

extern const struct stall_feature stall_bpf_features[];
extern const size_t stall_bpf_feature_count;
extern const struct stall_feature stall_waits_features[];
extern const size_t stall_waits_feature_count;

#endif

// SPDX-License-Identifier: Apache-2.0
// Waits from the BPF programs.
#ifndef STALL_SOURCE_BPF_H
#define STALL_SOURCE_BPF_H

#include "waits/wait_source.h"

// An error where this program was built without BPF.
struct stall_error *stall_wait_source_bpf(const struct stall_wait_source_options *options,
					  struct stall_wait_source *ret);

#endif

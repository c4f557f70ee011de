// SPDX-License-Identifier: Apache-2.0
// Why the kernel did not take a BPF program, in a sentence.
#ifndef STALL_BPF_ERROR_H
#define STALL_BPF_ERROR_H

#include "error.h"

// `programs`: what could not be loaded; `mend`: which kernel takes it; `log`: what libbpf said.
struct stall_error *stall_bpf_load_error(int errnum, const char *programs, const char *mend,
					 const char *log);

// The pid namespace of this process, as BPF programs see it.
struct stall_error *stall_bpf_pid_namespace(unsigned int *ret);

#endif

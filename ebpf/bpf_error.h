// SPDX-License-Identifier: Apache-2.0
// Why the kernel did not take a BPF program, in a sentence.
#ifndef STALL_BPF_ERROR_H
#define STALL_BPF_ERROR_H

#include "base/error.h"

// `programs`: what could not be loaded; `log`: what libbpf said. What is known to be in the way
// (capabilities, lockdown, BTF) comes first; no kernel version is promised to do better.
struct stall_error *stall_bpf_load_error(int errnum, const char *programs, const char *log);

#define STALL_BTF_PATH "/sys/kernel/btf/vmlinux"

// There is no BTF; `errnum` is what reading it gave.
struct stall_error *stall_bpf_no_types(int errnum);

// The pid namespace of this process, as BPF programs see it.
struct stall_error *stall_bpf_pid_namespace(unsigned int *ret);

#endif

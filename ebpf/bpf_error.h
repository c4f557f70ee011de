// SPDX-License-Identifier: Apache-2.0
// Why the kernel refused a BPF program, in a sentence, and what libbpf reported about it.
#ifndef STALL_BPF_ERROR_H
#define STALL_BPF_ERROR_H

#include <bpf/libbpf.h>

#include "base/error.h"

// Keeps what libbpf would print: a library does not write to the terminal.
struct stall_bpf_log {
	char text[512]; // the most informative line, "" where there was none
	libbpf_print_fn_t previous;
	struct stall_bpf_log *outer; // the inner one keeps what is printed within it
};

void stall_bpf_log_begin(struct stall_bpf_log *log);
void stall_bpf_log_end(struct stall_bpf_log *log);

// `programs`: what could not be loaded; `log`: what libbpf reported. Known causes (capabilities,
// lockdown, BTF) come first. No kernel version is promised to do better.
struct stall_error *stall_bpf_load_error(int errnum, const char *programs, const char *log);

#define STALL_BTF_PATH "/sys/kernel/btf/vmlinux"

// There is no BTF; `errnum` is what reading it gave.
struct stall_error *stall_bpf_no_types(int errnum);

// The pid namespace of this process, as BPF programs see it.
struct stall_error *stall_bpf_pid_namespace(unsigned int *ret);

#endif

// SPDX-License-Identifier: Apache-2.0
// Keeps what libbpf would print: a library does not write to the terminal.
#ifndef STALL_BPF_LOG_H
#define STALL_BPF_LOG_H

#include <bpf/libbpf.h>

struct stall_bpf_log {
	char text[512]; // the line that says most, "" where nothing was said
	libbpf_print_fn_t previous;
	struct stall_bpf_log *outer; // what is within it is kept by the inner one
};

void stall_bpf_log_begin(struct stall_bpf_log *log);
void stall_bpf_log_end(struct stall_bpf_log *log);

#endif

// SPDX-License-Identifier: Apache-2.0
// Runs a BPF task iterator over the threads of one process, or of all.
#ifndef STALL_TASK_ITERATOR_H
#define STALL_TASK_ITERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

// The records of one run, back to back.
struct stall_bpf_records {
	uint8_t *data;
	size_t size, capacity;
	bool cut; // there were more than `max_bytes`
};

void stall_bpf_records_deinit(struct stall_bpf_records *records);

struct bpf_program;
struct bpf_link;

// pid 0: over all threads. NULL with errno where the kernel cannot.
struct bpf_link *stall_task_iterator_attach(struct bpf_program *program, pid_t pid);
// Over one thread. NULL with errno where the kernel cannot, or it has ended (ESRCH).
struct bpf_link *stall_task_iterator_attach_thread(struct bpf_program *program, pid_t tid);
// Reads the output of one run; `add`: behind that of earlier ones.
struct stall_error *stall_task_iterator_add(struct bpf_link *link, size_t max_bytes,
					    struct stall_bpf_records *records);
struct stall_error *stall_task_iterator_run(struct bpf_link *link, size_t max_bytes,
					    struct stall_bpf_records *records);
// Runs a program that has no output, once. pid: as above.
struct stall_error *stall_task_iterator_walk(struct bpf_program *program, pid_t pid);

#endif

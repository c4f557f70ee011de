// SPDX-License-Identifier: Apache-2.0
// Work on a hostile file by a child in a sandbox, of which nothing is believed: what it writes is
// passed on up to a limit, what it answers is checked by the caller, and it is not waited for.
#ifndef STALL_UNTRUSTED_H
#define STALL_UNTRUSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/output.h"

struct stall_untrusted {
	const char *path; // for messages
	const char *what; // "core file"
	// Called in the child, before the sandbox: for what takes rights or new descriptors. May be
	// NULL.
	struct stall_error *(*prepare)(void *arg);
	// Called in the sandbox. Files come by stall_path_open() from then on. *ret_answer has
	// answer_size bytes.
	struct stall_error *(*run)(void *arg, struct stall_output *output, void *ret_answer);
	void *arg;
	bool reads_input;	  // from standard input
	size_t answer_size;	  // at most STALL_UNTRUSTED_ANSWER
	size_t memory_limit;	  // bytes of address space
	unsigned int cpu_seconds; // seconds of CPU time,
	uint64_t deadline_ms;	  // and of time; 0: no limit
	uint64_t max_bytes;	  // of output
};

#define STALL_UNTRUSTED_ANSWER 8192

// `ret_answer` may have any bytes. *ret_missing as of stall_sandbox_enter().
struct stall_error *stall_untrusted_run(const struct stall_untrusted *work,
					struct stall_output *output, void *ret_answer,
					unsigned int *ret_missing);

#endif

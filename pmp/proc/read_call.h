// SPDX-License-Identifier: Apache-2.0
// One request to the reading child (read_child.h), and its answer. Only pmp/proc includes it.
#ifndef STALL_READ_CALL_H
#define STALL_READ_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/path_status.h"
#include "proc/read_child_main.h"

// What can keep reads waiting: the mmap_lock of a process, or a device with files of it.
struct stall_read_cause {
	pid_t pid; // 0: we, in our own root
	uint64_t start_time;
	bool is_path;
	uint64_t device; // 0: not known
};

struct stall_read_call {
	struct stall_read_cause cause;
	struct stall_read_message message; // the request, and then the answer
	int given;			   // a descriptor that goes with it, or -1
	int to;				   // a socket, of STALL_PASS_FILE
	const void *in;			   // message.size bytes, or message.count numbers
	void *out;			   // gets the answer's bytes, at most out_size
	size_t out_size;
	struct stall_path_status status; // of the answer
	int fd;				 // of the answer, or -1
};

// Once more, but for reads of a file that is open, where the child died. Errors are those of the call;
// the answer's status is in the message.
struct stall_error *stall_read_call(struct stall_read_call *call);

#endif

// SPDX-License-Identifier: Apache-2.0
// The command "memory": gives a caller that calibrates pieces of a process's memory.
#ifndef STALL_MEMORY_COMMAND_H
#define STALL_MEMORY_COMMAND_H

#include "base/error.h"
#include "capture/capturer.h"

// Writes a JSON line with the threads of the process. Then it answers requests on `in` until its
// end. A request is a count (8 bytes, native order) and as many pairs of address and size (8 bytes
// each); the answer is as many numbers of bytes read (8 bytes each), then the bytes of all pieces,
// each in its whole size, zeros where nothing was read. A count of UINT64_MAX, then the length of a
// layout and its text, asks for what the connections run: the answer is the length of a line, and it.
struct stall_error *stall_memory_run(const struct stall_capturer_options *options, int in, int out);

// Writes one line with what the connections run, as `snap` does, without any stack.
struct stall_error *stall_sessions_run(const struct stall_capturer_options *options, int out);

#endif

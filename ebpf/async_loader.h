// SPDX-License-Identifier: Apache-2.0
// The part of the loader for asynchronous I/O. Used by waits_loader.c alone.
#ifndef STALL_ASYNC_LOADER_H
#define STALL_ASYNC_LOADER_H

#include <stdint.h>

#include "base/error.h"

// The tracepoint of a request's start: its present name, and the one before 6.4. The first argument
// is the request.
#define STALL_URING_SUBMIT "io_uring_submit_req"
#define STALL_URING_SUBMIT_BEFORE "io_uring_submit_sqe"

struct btf;
struct waits; // the skeleton

// Before the skeleton is loaded: finds out how this kernel reports io_uring, and excludes the
// programs that do not fit it. Returns NULL, with the tracepoint of a start in `ret_submit`, or one
// sentence with the reason why requests of io_uring are not seen.
const char *stall_async_prepare(struct waits *skeleton, const struct btf *btf,
				const char **ret_submit);
// After the skeleton is loaded, where requests of io_uring are seen.
struct stall_error *stall_async_attach(struct waits *skeleton, const char *submit);
void stall_async_detach(struct waits *skeleton);
// Drops the requests that a process had in flight when it ended.
void stall_async_forget(struct waits *skeleton, uint32_t tgid);

#endif

// SPDX-License-Identifier: Apache-2.0
// Where a capture goes: a file that is whole or absent, readable by its owner alone, or stdout.
#ifndef STALL_OUTPUT_H
#define STALL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct stall_output;

// `path` NULL is stdout. A name that ends in ".zst" is compressed. Until the commit nothing has
// the name; an existing file is only replaced with `force`.
struct stall_error *stall_output_create(const char *path, bool force, struct stall_output **ret);
// To an open descriptor, which stays the caller's.
struct stall_error *stall_output_create_fd(int fd, struct stall_output **ret);
// Keeps nothing of what is written.
struct stall_error *stall_output_create_null(struct stall_output **ret);
// Without a commit before, the file was never there.
void stall_output_destroy(struct stall_output *output);

struct stall_error *stall_output_write(struct stall_output *output, const void *data, size_t size);
// The file is on disk and has its name, or there is none. A child writes it, from memory.
// STALL_ERROR_LATE: the disk keeps that child, and the file is there, whole, once it answers.
struct stall_error *stall_output_commit(struct stall_output *output);

// For _cleanup_().
static inline void stall_output_destroyp(struct stall_output **output)
{
	stall_output_destroy(*output);
}

#endif

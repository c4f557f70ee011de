// SPDX-License-Identifier: Apache-2.0
// The destination of a capture: a file that is complete or absent, readable only by its owner, or
// stdout.
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
// Discards everything that is written.
struct stall_error *stall_output_create_null(struct stall_output **ret);
// A file for everybody to read: 0644 instead of 0600. Before the commit.
void stall_output_let_all_read(struct stall_output *output);
// Without a commit there is no file.
void stall_output_destroy(struct stall_output *output);

struct stall_error *stall_output_write(struct stall_output *output, const void *data, size_t size);
// The file is on disk under its name, or there is none. A child writes it, from memory.
// STALL_ERROR_LATE: that child waits for the disk, and the file is complete once the disk answers.
struct stall_error *stall_output_commit(struct stall_output *output);

// For _cleanup_().
static inline void stall_output_destroyp(struct stall_output **output)
{
	stall_output_destroy(*output);
}

#endif

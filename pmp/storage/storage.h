// SPDX-License-Identifier: Apache-2.0
// Counts what processes write to their files, and their syncs, by the wait programs.
#ifndef STALL_STORAGE_H
#define STALL_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/json_writer.h"

struct stall_storage;

struct stall_error *stall_storage_create(const pid_t *pids, size_t pid_count,
					 struct stall_storage **ret);
void stall_storage_destroy(struct stall_storage *storage); // NULL is fine

// For poll(2); POLLIN: call stall_storage_dispatch.
int stall_storage_fd(const struct stall_storage *storage);
struct stall_error *stall_storage_dispatch(struct stall_storage *storage);

// How many run.
size_t stall_storage_alive(const struct stall_storage *storage);
// Appends lines (docs/probe.md): of each process that runs, and the final one of each that has ended
// since the last call. `final`: of all that are left; nothing is counted any more.
struct stall_error *stall_storage_write(struct stall_storage *storage, bool final,
					struct stall_json *json);
// The same of those alone that have ended.
struct stall_error *stall_storage_write_ended(struct stall_storage *storage,
					      struct stall_json *json);

static inline void stall_storage_destroyp(struct stall_storage **storage)
{
	stall_storage_destroy(*storage);
}

#endif

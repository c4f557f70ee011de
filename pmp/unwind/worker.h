// SPDX-License-Identifier: Apache-2.0
// The unprivileged child that parses the target's ELF files, unwinds and names. It is kept between
// captures with its caches (one symbol table and one set of unwind rows per file), replaced when it
// dies, and nothing that it reports is used without a check.
#ifndef STALL_WORKER_H
#define STALL_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "snapshot/snapshot.h"
#include "unwind/function_place.h"
#include "unwind/pack_dirs.h"
#include "unwind/unwound.h"

struct stall_worker_options {
	const char *debug_dir; // searched in addition to /usr/lib/debug; may be NULL
	// Searched before /usr/share/stallscope/packs; at most STALL_MAX_SEARCH_DIRS.
	const char *const *pack_dirs;
	size_t pack_dir_count;
	unsigned int deadline_ms;
};

struct stall_worker;

// Forks the child, in a sandbox (sandbox/sandbox.h). The arena must be initialised before, so that the child has it too.
struct stall_error *stall_worker_create(struct stall_arena *arena,
					const struct stall_worker_options *options,
					struct stall_worker **ret);
void stall_worker_destroy(struct stall_worker *worker);
// Opens the folders that it will search. Where a process in a sandbox has the worker, its parent opens
// files for both, and must have them before it forks that process.
struct stall_error *stall_worker_open_dirs(const struct stall_worker_options *options);
// The layers that the child's sandbox lacks, as of stall_sandbox_enter().
unsigned int stall_worker_missing_layers(const struct stall_worker *worker);

// Never fails because of the contents of the target's files: those give partial results.
struct stall_error *stall_worker_unwind(struct stall_worker *worker,
					const struct stall_snapshot *snapshot,
					struct stall_unwound *ret);

// A data symbol (STT_OBJECT, STT_TLS excluded) that covers the address. names[i] is NULL where
// there is none; free with stall_names_destroy.
struct stall_data_query {
	uint32_t process;
	uint64_t address;
	char *name;	 // out, demangled, owned by the caller
	uint64_t offset; // out, into the object
};
struct stall_error *stall_worker_name_data(struct stall_worker *worker,
					   const struct stall_snapshot *snapshot,
					   struct stall_data_query *queries, size_t count);

// The address and size of a data symbol by name, in the process's main program first. *ret_address
// is 0 where there is none.
struct stall_error *stall_worker_find_data(struct stall_worker *worker,
					   const struct stall_snapshot *snapshot, uint32_t process,
					   const char *name, uint64_t *ret_address,
					   uint64_t *ret_size);

// The same for several names at once, in the main program alone. 0 where there is none.
struct stall_error *stall_worker_find_main_data(struct stall_worker *worker,
						const struct stall_snapshot *snapshot,
						uint32_t process, const char *const *names,
						size_t count, uint64_t *ret_addresses);

// The places for uprobes at functions, in the files of the process's modules: at their first
// instruction, or at the one after an ENDBR64, which can be emulated more often. A pattern is that
// of fnmatch(3), for the linkage name without a clone's suffix. Cold parts of functions are not
// found. At most STALL_FUNCTION_PLACES a pattern. A symbol, of whatever file, is only believed if the
// unwind information of the mapped file has a function that starts there. They come from a child that
// has had nothing but this process.
// *ret has room for pattern_count * STALL_FUNCTION_PLACES of them. Deinit those that were found, on
// failure too.
struct stall_error *stall_worker_find_functions(struct stall_worker *worker,
						const struct stall_snapshot *snapshot,
						uint32_t process, const char *const *patterns,
						size_t pattern_count,
						struct stall_function_place *ret,
						size_t *ret_count);

#endif

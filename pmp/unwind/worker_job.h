// SPDX-License-Identifier: Apache-2.0
// A job of the worker: what the probe writes into the region that both share.
#ifndef STALL_WORKER_JOB_H
#define STALL_WORKER_JOB_H

#include <stdbool.h>

#include "base/error.h"
#include "snapshot/snapshot.h"
#include "unwind/worker_protocol.h"

// Bad files: a worker died of them, or was late over them. Later workers do not get them, but only
// in jobs for the process whose data that worker had: an attacker who takes over a worker with the files or
// stacks of one process cannot hide the symbols of another.

#define STALL_MAX_BAD_FILES 64
#define STALL_MAX_BAD_FILES_OF_PROCESS 16 // the oldest of the same process is removed

// Identifies a process; both are 0 for a core file.
struct stall_bad_file_owner {
	pid_t pid;
	uint64_t start_time;
};

struct stall_bad_file {
	struct stall_bad_file_owner owner;
	struct stall_protocol_key key;
};

struct stall_bad_files {
	struct stall_bad_file list[STALL_MAX_BAD_FILES]; // the oldest first
	size_t count;
};

struct stall_bad_file_owner stall_bad_file_owner(const struct stall_process *process);
bool stall_bad_file_owner_is(const struct stall_bad_file_owner *owner,
			     const struct stall_process *process);
bool stall_bad_file_is_same(const struct stall_bad_file *a, const struct stall_bad_file *b);

void stall_bad_files_add(struct stall_bad_files *bad_files, const struct stall_bad_file *bad_file);
// NULL: an empty list.
bool stall_bad_files_has(const struct stall_bad_files *bad_files,
			 const struct stall_process *process, const struct stall_protocol_key *key);

// Backed by pages only as they are used.
#define STALL_WORKER_REGION ((size_t)512 << 20)

#define STALL_ALL_PROCESSES UINT32_MAX

// The data for making a job, and for reading its result.
struct stall_job_layout {
	uint8_t *region;
	size_t size, used;
	const struct stall_snapshot *snapshot;
	// The only process of the job, or STALL_ALL_PROCESSES: others have no modules, threads or
	// memory in it.
	uint32_t only;
	// Where things went; the region itself is not trusted once the worker had it.
	struct stall_protocol_job job;
	uint32_t *first_module; // per process: its first job module
};

// Lays out processes, mappings and modules; with `threads` these too. `bad_files` (may be NULL) are
// kept from the worker.
struct stall_error *stall_job_fill(struct stall_job_layout *layout, enum stall_protocol_kind kind,
				   const struct stall_bad_files *bad_files);
bool stall_job_has_process(const struct stall_job_layout *layout, uint32_t process);
// In their order, without those that did not change since the capture before.
struct stall_error *stall_job_fill_threads(struct stall_job_layout *layout);
struct stall_error *stall_job_fill_queries(struct stall_job_layout *layout,
					   const struct stall_protocol_query *queries,
					   size_t count);
// A string into the region; 0 where there is no room.
uint64_t stall_job_string(struct stall_job_layout *layout, const char *text);
// Gives the rest of the region to the results and writes the job's header.
struct stall_error *stall_job_finish(struct stall_job_layout *layout, uint64_t deadline_ns);
void stall_job_deinit(struct stall_job_layout *layout);

// The snapshot's module of a job module. False: there is none.
bool stall_job_module(const struct stall_job_layout *layout, uint32_t index, uint32_t *ret_process,
		      uint32_t *ret_module);
bool stall_protocol_key_read(const struct stall_module *module, struct stall_protocol_key *ret);

#endif

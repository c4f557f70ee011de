// SPDX-License-Identifier: Apache-2.0
// The watched processes: held, with their mappings, which change.
#ifndef STALL_WAIT_PROCESS_H
#define STALL_WAIT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

#define STALL_MAX_WATCHED 4096

struct stall_wait_process {
	pid_t pid;
	struct stall_snapshot *snapshot; // of this process alone, without threads; NULL once ended
	char comm[STALL_COMM];
	char *exe; // NULL unknown
	bool ended;
	bool end_reported;  // by stall_watch_take_ended()
	bool own_namespace; // its threads have other TIDs in its namespace than here
	struct stall_wait_tid {
		pid_t ns_tid, tid;
	} * tids; // of its threads, where it has a namespace of its own
	size_t tid_count;
	uint64_t tids_ns;	   // when they were listed
	uint32_t generation;	   // another one after each exec and each reading of its mappings
	uint64_t read_ns;	   // at its mappings, CLOCK_MONOTONIC
	uint64_t refresh_after_ns; // the least time to the next reading
	uint64_t low, high;	   // all its code is between
};

struct stall_wait_source;

struct stall_wait_processes {
	const struct stall_wait_source *source; // of snapshots; NULL: the live processes
	struct stall_wait_process *processes;	// ended ones too: the final line names them
	size_t count, alive;
	uint32_t generation;
};

void stall_wait_processes_deinit(struct stall_wait_processes *processes);
// Adds a process; for a pid that is reused, a new one. Fails where it is watched already.
struct stall_error *stall_wait_processes_add(struct stall_wait_processes *processes,
					     struct stall_arena *arena, pid_t pid);
// The one that runs under this pid, or NULL.
struct stall_wait_process *stall_wait_processes_find(const struct stall_wait_processes *processes,
						     pid_t pid);
void stall_wait_process_end(struct stall_wait_processes *processes,
			    struct stall_wait_process *process);
// Reads its mappings again, unless that was done a moment ago: less and less often, until the
// process has become another program or stall_wait_process_is_known is called. *ret_changed: they
// were read.
struct stall_error *stall_wait_process_refresh(struct stall_wait_processes *processes,
					       struct stall_wait_process *process, bool exec,
					       bool *ret_changed);
// Its mappings are up to date: all code that was seen is in one of them.
void stall_wait_process_is_known(struct stall_wait_process *process);
// The TID here of a thread that has that TID in its own namespace; 0: there is none.
pid_t stall_wait_process_tid(struct stall_wait_process *process, pid_t ns_tid);

#endif

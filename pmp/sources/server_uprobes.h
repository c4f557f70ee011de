// SPDX-License-Identifier: Apache-2.0
// Uprobes in the functions in which database servers wait for locks of their own: finds these in a
// process, sets the uprobes, and removes those that are hit too often.
#ifndef STALL_SERVER_PROBES_H
#define STALL_SERVER_PROBES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ebpf/waits_loader.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"
#include "waits/server_wait.h"

// Hits a second of one function, in all processes. One costs the thread about a microsecond, and
// where the kernel must single-step up to 25, in a virtual machine (docs/wait-programs.md).
#define STALL_MAX_UPROBE_HITS 20000
#define STALL_MAX_STEPPED_HITS 2000

// The watched functions. One for each stall_bpf_waits, over all its processes.
struct stall_server_uprobes;

struct stall_error *stall_server_uprobes_create(struct stall_bpf_waits *waits,
						struct stall_server_uprobes **ret);
void stall_server_uprobes_destroy(struct stall_server_uprobes *uprobes); // NULL is fine; detaches

// Finds the functions in the process's main program and libraries, by the worker, and sets the
// uprobes. The snapshot needs only maps, with their open files, no threads. A function that does
// not exist, or cannot have a uprobe, is no error: see stall_server_uprobes_state.
struct stall_error *stall_server_uprobes_attach(struct stall_server_uprobes *uprobes,
						struct stall_worker *worker,
						const struct stall_snapshot *snapshot,
						uint32_t process);
// The process has ended.
void stall_server_uprobes_remove(struct stall_server_uprobes *uprobes, pid_t pid);

// Removes the uprobes that are hit too often. Call it about every 100 ms. True: some were removed;
// their state has the reason.
bool stall_server_uprobes_check(struct stall_server_uprobes *uprobes, uint64_t now_ns);

struct stall_server_probe_state {
	uint32_t places; // uprobes set: a function can be there more than once (clones, libraries)
	uint64_t hits;	 // since the start
	bool refused;	 // it has a symbol, and no breakpoint may be there
	const char *why_not; // NULL while it is watched, else one sentence
};
void stall_server_uprobes_state(const struct stall_server_uprobes *uprobes, uint32_t function,
				struct stall_server_probe_state *ret);

// Why no function was searched for in a process's own program, one sentence; NULL: in all of them.
const char *stall_server_uprobes_unread(const struct stall_server_uprobes *uprobes);

static inline void stall_server_uprobes_destroyp(struct stall_server_uprobes **uprobes)
{
	stall_server_uprobes_destroy(*uprobes);
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Which ring belongs to which process.
#ifndef STALL_RING_FIND_H
#define STALL_RING_FIND_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/target.h"
#include "rings/ring_file.h"

// Opens the ring of a living process (a pid in our pid namespace). `path` is the ring, or a folder
// to search for it in: of its files the latest whose header has the process's pid in its own
// namespace, its start time, the start of its stack (where we may read that: it differs after an
// execve) and this boot's id, and that nobody can change but users that the process runs as, root
// and this process's user (trust.h); this holds for a named file too. NULL:
// the folders that the process may have chosen, as we see them and, where that is permitted, as it
// sees them: $STALLSCOPE_RUNTIME_DIR (its own, where we may read that, and ours), /run/stallscope,
// $XDG_RUNTIME_DIR/stallscope, /run/user/UID/stallscope, /dev/shm/stallscope-UID.
// STALL_ERROR_UNSUPPORTED: there is none; the message has the folders and what to do.
struct stall_error *stall_ring_open_process(pid_t pid, const char *path, bool writable,
					    struct stall_ring **ret);

// Whether the process, whose ring this was, executes another program now.
bool stall_ring_is_left(const struct stall_ring *ring, pid_t pid);

// Whether the process that made the ring is this one, a pid in our pid namespace, and still runs.
bool stall_ring_is_live(const struct stall_ring_header *header, pid_t pid);
bool stall_ring_is_of_another_boot(const struct stall_ring_header *header);

// Its pid in its own namespace, 0: not known. False: it is gone, or cannot be asked.
bool stall_ring_identify(pid_t pid, pid_t *ret_ns_pid, uint64_t *ret_start_time);

// NULL where there is a ring that we can read in one of the folders that our own user's processes
// would choose.
struct stall_error *stall_ring_find_any(void);

#endif

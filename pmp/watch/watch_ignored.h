// SPDX-License-Identifier: Apache-2.0
// Threads that are ignored, as a caller names them: those that serve the caller itself.
#ifndef STALL_WATCH_IGNORED_H
#define STALL_WATCH_IGNORED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_watch;

// A thread of a process: by its number in its own pid namespace, or (tid 0) as the one that waits for
// the socket whose end there has this inode number.
struct stall_ignored_name {
	pid_t pid, tid;
	uint64_t inode;
};

// From "PID TID" or "PID socket:INODE".
struct stall_error *stall_ignored_name_parse(const char *text, struct stall_ignored_name *ret);
// From "PID TID" alone.
struct stall_error *stall_heeded_name_parse(const char *text, struct stall_ignored_name *ret);
// Sets the number of the thread, where it is not known.
struct stall_error *stall_ignored_name_resolve(struct stall_ignored_name *name);

// STALL_ERROR_NO_PROCESS: it is none of this watch.
struct stall_error *stall_watch_check_pid(struct stall_watch *watch, pid_t pid);
// Of a process of this watch: until the thread ends, or is heeded.
struct stall_error *stall_watch_ignore(struct stall_watch *watch, pid_t pid, pid_t tid, bool on);

#endif

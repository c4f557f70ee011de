// SPDX-License-Identifier: Apache-2.0
// Small files and links of /proc/PID. Those that the kernel answers without a wait are read directly,
// all others by the reading child.
#ifndef STALL_PROC_FILE_H
#define STALL_PROC_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/proc_stat.h"
#include "proc/target_handle.h"

// "status", "fdinfo/3", "task/7/stat"; of ours where the target is NULL. The text is cut at `size` and has an end. Returns its bytes, or
// -1 with errno; ETIME: it was late.
ssize_t stall_proc_read(const struct stall_target *target, const char *name, char *ret,
			size_t size);
ssize_t stall_proc_read_thread(const struct stall_target *target, pid_t tid, const char *name,
			       char *ret, size_t size);

// Its root folder as we see it; "": it is ours.
void stall_proc_root(const struct stall_target *target, char *ret, size_t size);

// Where a link leads: "exe", "cwd", "fd/3"; of ours where the target is NULL. False with errno.
bool stall_proc_link(const struct stall_target *target, const char *name, char *ret, size_t size);
// The same as the process sees it.
bool stall_proc_link_inside(const struct stall_target *target, const char *name, char *ret,
			    size_t size);

// The folder of its threads, for who reads their small files again and again. -1 with errno.
int stall_proc_open_tasks(const struct stall_target *target);
bool stall_proc_has_thread(const struct stall_target *target, pid_t tid);

// Its pid namespace by number; 0: not known. NULL: ours.
uint64_t stall_proc_pid_namespace(const struct stall_target *target);

// /proc/PID/task/TID/stat: the file of the process adds up all threads.
// Returns an errno.
int stall_proc_stat_read(const struct stall_target *target, pid_t tid, struct stall_proc_stat *ret);

// A line of a status file, "\nUid:", past its name; NULL: there is none.
const char *stall_proc_field(const char *text, const char *name);

#endif

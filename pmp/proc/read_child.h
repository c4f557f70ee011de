// SPDX-License-Identifier: Apache-2.0
// Reads of a process that wait for its mmap_lock: of its memory, its mappings, its command line. A
// thread of it that changes the mappings while a disk or a device keeps it waiting holds that lock
// for as long, and the wait for it cannot be ended, not even by SIGKILL. So a child does these
// reads. A child that is late is abandoned, and everything else of the process can still be read.
#ifndef STALL_READ_CHILD_H
#define STALL_READ_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/error.h"
#include "proc/target_handle.h"

// Whether a read of the process was late, or was not tried because of an earlier one, since then
// (CLOCK_MONOTONIC).
bool stall_late_reads_since(const struct stall_target *target, uint64_t since_ns);

// Of this program's reading children, how many wait for something and cannot be ended.
size_t stall_read_children_left(void);

// In a child of this program, which can be left behind: it reads by itself.
void stall_read_child_disown(void);

// How long a read may get no further. A process of which a read was late is left alone for a
// second, and then has less time.
#define STALL_READ_PATIENCE_MS 500

// At most so long, where a capture has little time.
void stall_read_child_set_patience(unsigned int ms);

// Into this arena the child reads directly; other memory gets a copy. Until it is forgotten.
struct stall_error *stall_read_child_share(struct stall_arena *arena);
void stall_read_child_forget(struct stall_arena *arena);

// Many ranges of the process's memory in as few system calls as possible: process_vm_readv(2), and
// /proc/PID/mem where that is missing. A range that fails does not spoil the others: its `done` says
// how much of it was read. STALL_ERROR_LATE: of the rest nothing was read.
struct stall_read {
	uint64_t address;
	void *buf;
	size_t size;
	size_t done;
};
struct stall_error *stall_read_child_memory(const struct stall_target *target,
					    struct stall_read *reads, size_t count);
// One range. Returns the bytes read from its start on (0 where nothing is readable).
size_t stall_read_child_range(const struct stall_target *target, uint64_t address, void *buf,
			      size_t size);

// A file below /proc/PID: opened by its name, then read in pieces until 0, before anything else is
// read of any process. An errno that the kernel gave is that of the error.
struct stall_error *stall_read_child_open(const struct stall_target *target, const char *name);
struct stall_error *stall_read_child_next(const struct stall_target *target, void *buf, size_t size,
					  size_t *ret);
// From an offset on.
struct stall_error *stall_read_child_at(const struct stall_target *target, uint64_t offset,
					void *buf, size_t size, size_t *ret);
// The first `size` bytes of such a file; fewer where it is shorter or cannot be read.
size_t stall_read_child_text(const struct stall_target *target, const char *name, void *buf,
			     size_t size);

#endif

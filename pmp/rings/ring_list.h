// SPDX-License-Identifier: Apache-2.0
// The rings that there are, and what has become of their servers.
#ifndef STALL_RING_LIST_H
#define STALL_RING_LIST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "inproc/ring.h"

#define STALL_RING_LIST_MAX 4096 // what is more is not listed

enum stall_ring_life {
	STALL_RING_LIFE_UNKNOWN, // it cannot be seen from here, or the ring cannot be read
	STALL_RING_LIFE_ALIVE,
	STALL_RING_LIFE_ENDED, // it has exited cleanly
	STALL_RING_LIFE_LEFT,  // it has ended without a note, or executes another program
};

struct stall_listed_ring {
	char *path;
	struct stall_error *err; // why it cannot be read; nothing below is set then
	enum stall_ring_life life;
	pid_t process;			 // in our pid namespace, while it is alive; else 0
	uid_t owner;			 // of the file
	struct stall_ring_header header; // a copy; strings end
	uint32_t threads, waiting;	 // slots in use; those in a wait
};

struct stall_ring_list {
	struct stall_listed_ring *rings;
	size_t count, capacity;
};

// The ring at the path, or why it cannot be read.
struct stall_error *stall_ring_list_add(struct stall_ring_list *list, const char *path);
// Those in $STALLSCOPE_RUNTIME_DIR; where that is not set, those in the folders of all users, as far
// as we may look into them.
struct stall_error *stall_ring_list_add_all(struct stall_ring_list *list);
// Those of a process, as stall_ring_open_process() finds it; none where there is none.
struct stall_error *stall_ring_list_add_process(struct stall_ring_list *list, pid_t pid);
// Sets what is known of the servers of all.
struct stall_error *stall_ring_list_judge(struct stall_ring_list *list);
void stall_ring_list_deinit(struct stall_ring_list *list);

#endif

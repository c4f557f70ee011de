// SPDX-License-Identifier: Apache-2.0
// What goes between the program and its reading child (read_child.h). Only those two include it.
#ifndef STALL_READ_CHILD_MAIN_H
#define STALL_READ_CHILD_MAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proc/path_status.h"

#define STALL_READ_RANGES 8192 // of one request
#define STALL_READ_COPY ((size_t)1 << 20)
#define STALL_READ_NUMBERS 65536
#define STALL_READ_DISTRUST (-1) // a status: the text says why

enum stall_read_op {
	STALL_READ_MEMORY,
	STALL_READ_MEMORY_FILE,
	STALL_OPEN_FILE,
	STALL_READ_FILE,
	STALL_OPEN_PATH,
	STALL_LIST_FOLDER,
	STALL_LIST_DESCRIPTORS,
	STALL_PASS_FILE,
	STALL_WORK_ON_FILE,
};

enum stall_read_given {	 // descriptors that go with a request; -1: none
	STALL_READ_FROM, // a folder, or an open file
	STALL_READ_TO,	 // a socket
	STALL_READ_GIVEN,
};

enum stall_read_below { // where links stay
	STALL_READ_ANYWHERE,
	STALL_READ_BELOW_ROOT, // in the root of the process with the given folder of /proc; or ours
	STALL_READ_BELOW_FOLDER, // in the given folder
};

struct stall_read_message {
	enum stall_read_op op;
	int status; // errno of the child
	pid_t pid;
	uint32_t count; // ranges, descriptors
	size_t size;	// bytes wanted, and then got; of the path with its end, and of its
			// folder's
	int64_t offset; // in the file; -1: where the last read ended
	uint32_t how;	// enum stall_path_how
	uint32_t below; // enum stall_read_below
	stall_path_work_fn work;
};
_Static_assert(sizeof(struct stall_read_message) == 48, "whole words");

struct stall_read_range {
	uint64_t address;
	void *to; // in memory that both have, at one address
	size_t size, done;
};
_Static_assert(sizeof(struct stall_read_range) == 32, "no holes");

// One of the answer to STALL_LIST_DESCRIPTORS.
struct stall_read_descriptor {
	int32_t fd, errnum;
	struct stall_path_status status;
	uint32_t size; // of the path behind it, with its end
};
_Static_assert(sizeof(struct stall_read_descriptor) == 16 + sizeof(struct stall_path_status),
	       "whole words");

struct stall_read_region {
	_Atomic uint32_t settled; // ranges of the request, as they are done
	union {
		struct stall_read_range ranges[STALL_READ_RANGES];
		int32_t numbers[STALL_READ_NUMBERS]; // descriptors of the process
	};
	struct stall_path_status status; // of what was opened
	uint8_t copy[STALL_READ_COPY];	 // of what goes to memory that the child has not; a path
};
_Static_assert(offsetof(struct stall_read_region, copy) % 8 == 0, "work takes it as a structure");

bool stall_read_send(int socket, const struct stall_read_message *message, const int *fds,
		     size_t fd_count);
// False: the other side has ended. What did not come with it is -1.
bool stall_read_receive(int socket, struct stall_read_message *ret, int *ret_fds, size_t fd_count);

// By pread(2) of /proc/PID/mem; `done` says how far it came.
void stall_read_range(int fd, struct stall_read_range *range);

// What the request asks for; returns an errno. `given` came with it. `*file` stays open between two
// messages, or goes with the answer.
int stall_read_answer(struct stall_read_region *region, struct stall_read_message *message,
		      const int given[STALL_READ_GIVEN], int *file);

// What the child runs: it answers until the socket closes.
_Noreturn void stall_read_child_main(struct stall_read_region *region, int socket, pid_t parent);

#endif

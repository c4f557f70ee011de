// SPDX-License-Identifier: Apache-2.0
// What goes between the program and its reading child (read_child.h). Only those two include it.
#ifndef STALL_READ_CHILD_MAIN_H
#define STALL_READ_CHILD_MAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STALL_READ_RANGES 8192 // of one request
#define STALL_READ_COPY ((size_t)1 << 20)
#define STALL_READ_PATH 64

enum stall_read_op {
	STALL_READ_MEMORY,
	STALL_READ_MEMORY_FILE,
	STALL_OPEN_FILE,
	STALL_READ_FILE,
	STALL_OPEN_LINK
};

struct stall_read_message {
	enum stall_read_op op;
	int status; // errno of the child
	pid_t pid;
	uint32_t count;
	size_t size;
	char path[STALL_READ_PATH];
};

struct stall_read_range {
	uint64_t address;
	void *to; // in memory that both have, at one address
	size_t size, done;
};

struct stall_read_region {
	_Atomic uint32_t settled; // ranges of the request, as they are done
	struct stall_read_range ranges[STALL_READ_RANGES];
	uint8_t copy[STALL_READ_COPY]; // of what goes to memory that the child has not
};

bool stall_read_send(int socket, const struct stall_read_message *message, int fd);
// False: the other side has ended. `ret_fd`: -1 where none came with it.
bool stall_read_receive(int socket, struct stall_read_message *ret, int *ret_fd);

// By pread(2) of /proc/PID/mem; `done` says how far it came.
void stall_read_range(int fd, struct stall_read_range *range);

// What the child runs: it answers until the socket closes.
_Noreturn void stall_read_child_main(struct stall_read_region *region, int socket, pid_t parent);

#endif

// SPDX-License-Identifier: Apache-2.0
// Files that a worker died of or was late over. Each is kept from workers for the one process whose
// data that worker had: who takes a worker over by the files or stacks of one process gains nothing
// against the symbols of another.
#ifndef STALL_WORKER_POISONS_H
#define STALL_WORKER_POISONS_H

#include <stdbool.h>

#include "snapshot/snapshot.h"
#include "unwind/worker_wire.h"

#define STALL_MAX_POISONS 64
#define STALL_MAX_POISONS_OF_PROCESS 16 // the oldest of its own make room

// Of a process; those of a core file have none of the two.
struct stall_poison_owner {
	pid_t pid;
	uint64_t start_time;
};

struct stall_poison {
	struct stall_poison_owner owner;
	struct stall_wire_key key;
};

struct stall_poisons {
	struct stall_poison list[STALL_MAX_POISONS]; // the oldest first
	size_t count;
};

struct stall_poison_owner stall_poison_owner(const struct stall_process *process);
bool stall_poison_owner_is(const struct stall_poison_owner *owner,
			   const struct stall_process *process);
bool stall_poison_is_same(const struct stall_poison *a, const struct stall_poison *b);

void stall_poisons_add(struct stall_poisons *poisons, const struct stall_poison *poison);
// NULL has none.
bool stall_poisons_has(const struct stall_poisons *poisons, const struct stall_process *process,
		       const struct stall_wire_key *key);

#endif

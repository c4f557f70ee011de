// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker_poisons.h"

#include <string.h>

struct stall_poison_owner stall_poison_owner(const struct stall_process *process)
{
	return (struct stall_poison_owner){process->target.pid, process->target.start_time};
}

static bool is_same_owner(const struct stall_poison_owner *a, const struct stall_poison_owner *b)
{
	return a->pid == b->pid && a->start_time == b->start_time;
}

bool stall_poison_owner_is(const struct stall_poison_owner *owner,
			   const struct stall_process *process)
{
	const struct stall_poison_owner other = stall_poison_owner(process);

	return is_same_owner(owner, &other);
}

bool stall_poison_is_same(const struct stall_poison *a, const struct stall_poison *b)
{
	return is_same_owner(&a->owner, &b->owner) && memcmp(&a->key, &b->key, sizeof(a->key)) == 0;
}

// The one that makes room: the oldest of a process that has too many, else the oldest of all.
static size_t find_oldest(const struct stall_poisons *poisons,
			  const struct stall_poison_owner *owner)
{
	size_t first = 0, count = 0;

	for (size_t i = poisons->count; i-- > 0;) {
		if (is_same_owner(&poisons->list[i].owner, owner)) {
			first = i;
			count++;
		}
	}
	if (count >= STALL_MAX_POISONS_OF_PROCESS)
		return first;
	return poisons->count == STALL_MAX_POISONS ? 0 : SIZE_MAX;
}

void stall_poisons_add(struct stall_poisons *poisons, const struct stall_poison *poison)
{
	size_t oldest = find_oldest(poisons, &poison->owner);

	if (oldest != SIZE_MAX) {
		poisons->count--;
		memmove(&poisons->list[oldest], &poisons->list[oldest + 1],
			(poisons->count - oldest) * sizeof(*poison));
	}
	poisons->list[poisons->count++] = *poison;
}

bool stall_poisons_has(const struct stall_poisons *poisons, const struct stall_process *process,
		       const struct stall_wire_key *key)
{
	const struct stall_poison wanted = {stall_poison_owner(process), *key};

	for (size_t i = 0; poisons && i < poisons->count; i++) {
		if (stall_poison_is_same(&poisons->list[i], &wanted))
			return true;
	}
	return false;
}

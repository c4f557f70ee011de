// SPDX-License-Identifier: Apache-2.0
#include "ebpf/pid_set.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/array.h"

struct stall_error *stall_pid_set_fill(struct stall_pid_set *set, int map, const pid_t *pids,
				       size_t count)
{
	uint8_t one = 1;

	for (size_t i = 0; i < set->count; i++)
		bpf_map_delete_elem(map, &set->pids[i]);
	set->count = 0;
	if (!stall_array_resize(&set->pids, count))
		return &stall_enomem;
	for (size_t i = 0; i < count; i++) {
		if (bpf_map_update_elem(map, &pids[i], &one, BPF_ANY) < 0)
			return stall_error_os(errno, "cannot choose process %d in the BPF map",
					      pids[i]);
		set->pids[set->count++] = pids[i];
	}
	return NULL;
}

void stall_pid_set_deinit(struct stall_pid_set *set)
{
	free(set->pids);
	*set = (struct stall_pid_set){};
}

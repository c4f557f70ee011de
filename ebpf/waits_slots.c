// SPDX-License-Identifier: Apache-2.0
#include "ebpf/waits_slots.h"

#include <bpf/bpf.h>

#include "ebpf/waits_state.h"

bool stall_waits_have_programs_ended(struct stall_bpf_waits *waits)
{
	struct stall_error *err = stall_grace_period_wait(&waits->grace_period);
	bool has_waited = !err;

	stall_error_destroy(err);
	return has_waited;
}

void stall_waits_free_slot(struct stall_bpf_waits *waits, uint32_t index)
{
	struct stall_wait_slot *slot = &waits->slots[index];
	uint32_t marked = __atomic_exchange_n(&slot->marked, 0, __ATOMIC_SEQ_CST);

	if (slot->seq & 1)
		slot->seq++;
	slot->tid = 0;
	if (marked && slot->stat < waits->stat_count) {
		__atomic_fetch_sub(&waits->stats[slot->stat].marked, 1, __ATOMIC_SEQ_CST);
		__atomic_fetch_sub(&waits->skeleton->bss->marks, 1, __ATOMIC_SEQ_CST);
	}
	bpf_map_update_elem(bpf_map__fd(waits->skeleton->maps.free_slots), NULL, &index, BPF_ANY);
}

void stall_waits_forget_threads(struct stall_bpf_waits *waits, pid_t pid)
{
	for (size_t t = 0; t < waits->thread_count; t++) {
		uint32_t index = (uint32_t)waits->threads[t] - 1;

		if (waits->threads[t] && index < waits->slot_count &&
		    waits->slots[index].tgid == pid)
			waits->threads[t] = 0;
	}
}

void stall_waits_free_slots(struct stall_bpf_waits *waits, pid_t pid)
{
	for (uint32_t index = 0; index < waits->slot_count; index++) {
		if (waits->slots[index].tid && waits->slots[index].tgid == pid)
			stall_waits_free_slot(waits, index);
	}
}

void stall_waits_free_slot_of(struct stall_bpf_waits *waits, uint32_t index, uint32_t tid)
{
	for (uint32_t i = 0; i < STALL_THREAD_PLACES; i++) {
		uint64_t *place = &waits->threads[(tid + i) & (waits->thread_count - 1)];

		if (*place == ((uint64_t)tid << 32 | (index + 1)))
			*place = 0;
	}
	stall_waits_free_slot(waits, index);
}

// SPDX-License-Identifier: Apache-2.0
#include "ebpf/ignored_loader.h"

#include "ebpf/task_iterator.h"
#include "ebpf/waits_slots.h"
#include "ebpf/waits_state.h"

#define ENTRY(tid, index) ((uint64_t)(tid) << 32 | (STALL_IGNORED + (index) + 1))

// The place of its entry; NULL: it has none any more, since its thread has ended.
static uint64_t *find_entry(struct stall_bpf_waits *waits, uint32_t tid, size_t index)
{
	for (uint32_t i = 0; i < STALL_THREAD_PLACES; i++) {
		uint64_t *place = &waits->threads[(tid + i) & (waits->thread_count - 1)];

		if (*(volatile uint64_t *)place == ENTRY(tid, index))
			return place;
	}
	return NULL;
}

static void release(struct stall_bpf_waits *waits, size_t index)
{
	struct stall_ignored *ignored = &waits->skeleton->bss->ignored[index];
	uint64_t expected = ENTRY(ignored->tid, index);
	uint64_t *place = find_entry(waits, ignored->tid, index);

	if (place)
		__atomic_compare_exchange_n(place, &expected, 0, false, __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST);
	*ignored = (struct stall_ignored){};
	waits->ignored[index] = (struct stall_ignored_thread){};
}

// A free one, or that of a thread whose end a program has seen.
static struct stall_error *find_free(struct stall_bpf_waits *waits, size_t *ret)
{
	const struct stall_ignored *ignored = waits->skeleton->bss->ignored;

	for (size_t i = 0; i < STALL_MAX_IGNORED; i++) {
		if (waits->ignored[i].tid && find_entry(waits, ignored[i].tid, i))
			continue;
		release(waits, i);
		*ret = i;
		return NULL;
	}
	return stall_error_create(STALL_ERROR_LIMIT, "%d threads are ignored already",
				  STALL_MAX_IGNORED);
}

// Where the kernel cannot limit the iterator, or ended it early, it walks over all tasks.
static struct stall_error *find_thread(struct stall_bpf_waits *waits, pid_t pid)
{
	const volatile __u32 *found = &waits->skeleton->bss->ignored_found;
	struct bpf_program *program = waits->skeleton->progs.stall_ignore;

	if (!waits->no_limit) {
		struct stall_error *err = stall_task_iterator_walk(program, pid);

		if (err)
			return err;
	}
	return *found ? NULL : stall_task_iterator_walk(program, 0);
}

// The slot that it had. Its programs may write it until they have ended.
static void free_former_slot(struct stall_bpf_waits *waits, uint32_t slot, pid_t tid)
{
	if (slot >= waits->slot_count || !stall_waits_have_programs_ended(waits))
		return;
	// Else the thread has ended meanwhile, and freed it.
	if (waits->slots[slot].ns_tid == tid && waits->slots[slot].tid)
		stall_waits_free_slot(waits, slot);
}

struct stall_error *stall_bpf_waits_ignore(struct stall_bpf_waits *waits, pid_t pid, pid_t tid)
{
	struct waits__bss *bss = waits->skeleton->bss;
	size_t index = 0;

	// A thread that had this number before.
	stall_bpf_waits_heed(waits, pid, tid);
	struct stall_error *err = find_free(waits, &index);
	if (err)
		return err;
	bss->ignored_pid = pid;
	bss->ignored_tid = tid;
	bss->ignored_index = index;
	bss->ignored_found = 0;
	err = find_thread(waits, pid);
	if (err)
		return err;
	if (!*(volatile __u32 *)&bss->ignored_found)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has no thread %d",
					  pid, tid);
	// As one that the latest pass has seen.
	bss->ignored[index].seen = waits->pass.number;
	waits->ignored[index] = (struct stall_ignored_thread){pid, tid};
	free_former_slot(waits, *(volatile __u32 *)&bss->ignored_slot, tid);
	return NULL;
}

void stall_bpf_waits_heed(struct stall_bpf_waits *waits, pid_t pid, pid_t tid)
{
	for (size_t i = 0; i < STALL_MAX_IGNORED; i++)
		if (waits->ignored[i].pid == pid && waits->ignored[i].tid == tid)
			release(waits, i);
}

void stall_ignored_remove(struct stall_bpf_waits *waits, pid_t pid)
{
	for (size_t i = 0; i < STALL_MAX_IGNORED; i++)
		if (waits->ignored[i].pid == pid)
			release(waits, i);
}

void stall_ignored_passed(struct stall_bpf_waits *waits, pid_t pid)
{
	const volatile struct stall_ignored *ignored = waits->skeleton->bss->ignored;

	for (size_t i = 0; i < STALL_MAX_IGNORED; i++)
		if (waits->ignored[i].pid == pid && ignored[i].seen != waits->pass.number)
			release(waits, i);
}

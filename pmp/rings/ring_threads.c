// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_threads.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"

static int compare_threads(const void *a, const void *b)
{
	const struct stall_ring_thread *x = a, *y = b;

	if (x->slot.tid != y->slot.tid)
		return x->slot.tid < y->slot.tid ? -1 : 1;
	// Of a slot that was never freed and one of its tid's next owner, keeps the slot that
	// waited last.
	return (x->slot.start_ns < y->slot.start_ns) - (x->slot.start_ns > y->slot.start_ns);
}

static void drop_doubles(struct stall_ring_threads *threads)
{
	size_t kept = 0;

	for (size_t i = 0; i < threads->count; i++) {
		if (kept && threads->threads[kept - 1].slot.tid == threads->threads[i].slot.tid)
			continue;
		threads->threads[kept++] = threads->threads[i];
	}
	threads->count = kept;
}

static void note_time(struct stall_ring_threads *threads, uint64_t ns)
{
	if (ns > threads->newest_ns && ns <= STALL_RING_MAX_TIME)
		threads->newest_ns = ns;
}

static void read_thread(struct stall_ring_threads *threads, const struct stall_ring *ring,
			size_t slot, struct stall_arena *arena, uint8_t *buffer, size_t room)
{
	struct stall_ring_thread *thread = &threads->threads[threads->count];

	*thread = (struct stall_ring_thread){};
	if (!stall_ring_read_slot(ring, slot, &thread->slot) || thread->slot.tid <= 0)
		return;
	threads->count++;
	note_time(threads, thread->slot.start_ns);
	if (!stall_ring_thread_is_waiting(thread))
		return;
	thread->has_stack =
		stall_ring_read_stack(ring, slot, thread->slot.seq, &thread->copy, buffer, room);
	if (!thread->has_stack)
		return;
	note_time(threads, thread->copy.words_ns);
	thread->stack = stall_arena_alloc(arena, thread->copy.size);
	if (thread->stack)
		memcpy(thread->stack, buffer, thread->copy.size);
	else
		threads->full++;
}

struct stall_error *stall_ring_threads_init(struct stall_ring_threads *threads,
					    const struct stall_ring *ring,
					    struct stall_arena *arena, size_t max_stack)
{
	size_t room = stall_ring_max_stack(ring), count;

	if (room > max_stack)
		room = max_stack;
	_cleanup_free_ uint8_t *buffer = malloc(room + 1);
	stall_ring_slots(ring, &count);
	*threads = (struct stall_ring_threads){
		.threads = calloc(count + 1, sizeof(*threads->threads)),
	};
	if (!buffer || !threads->threads) {
		stall_ring_threads_deinit(threads);
		return &stall_enomem;
	}
	for (size_t i = 0; i < count; i++)
		read_thread(threads, ring, i, arena, buffer, room);
	qsort(threads->threads, threads->count, sizeof(*threads->threads), compare_threads);
	drop_doubles(threads);
	return NULL;
}

void stall_ring_threads_deinit(struct stall_ring_threads *threads)
{
	free(threads->threads);
	*threads = (struct stall_ring_threads){};
}

const struct stall_ring_thread *stall_ring_threads_find(const struct stall_ring_threads *threads,
							pid_t ns_tid)
{
	size_t low = 0, high = threads->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		pid_t tid = threads->threads[middle].slot.tid;

		if (tid == ns_tid)
			return &threads->threads[middle];
		if (tid < ns_tid)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

void stall_ring_regs_fill(const __u64 regs[STALL_BPF_PT_REGS], struct stall_regs *ret)
{
	// DWARF's numbers: System V ABI, AMD64 supplement, figure 3.36.
	static const struct {
		uint8_t dwarf, index;
	} kept[] = {
		{STALL_REG_RBX, STALL_BPF_BX}, {STALL_REG_RBP, STALL_BPF_BP}, {12, STALL_BPF_R12},
		{13, STALL_BPF_R13},	       {14, STALL_BPF_R14},	      {15, STALL_BPF_R15},
		{STALL_REG_SP, STALL_BPF_SP},  {STALL_REG_PC, STALL_BPF_IP},
	};

	*ret = (struct stall_regs){};
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		ret->value[kept[i].dwarf] = regs[kept[i].index];
		ret->valid |= 1U << kept[i].dwarf;
	}
}

enum stall_object stall_ring_object(uint32_t call)
{
	switch (call) {
	case STALL_RING_MUTEX_LOCK:
		return STALL_OBJECT_MUTEX;
	case STALL_RING_RWLOCK_RDLOCK:
		return STALL_OBJECT_RDLOCK;
	case STALL_RING_RWLOCK_WRLOCK:
		return STALL_OBJECT_WRLOCK;
	case STALL_RING_COND_WAIT:
		return STALL_OBJECT_COND;
	default:
		return STALL_OBJECT_NONE;
	}
}

// Of a pthread wait only the object is known, not the word in it; of a system call, what it was
// asked for, but not by which descriptor.
static void fill_call(const struct stall_wait_slot *slot, struct stall_thread *thread)
{
	thread->in_syscall = true;
	memset(thread->args, 0, sizeof(thread->args));
	if (slot->key.kind == STALL_WAIT_FUTEX) {
		thread->syscall = SYS_futex;
		thread->args[0] = slot->key.id;
		thread->object_kind = stall_ring_object(slot->operation);
		thread->object = slot->key.id;
		return;
	}
	thread->syscall = slot->operation;
	if (stall_wait_has_bytes(slot->key.kind)) {
		thread->args[2] = slot->size;
		thread->args[3] = slot->value;
	}
}

void stall_ring_thread_fill(const struct stall_ring_thread *from, uint64_t now_ns,
			    struct stall_thread *thread)
{
	const struct stall_wait_slot *slot = &from->slot;

	if (!stall_ring_thread_is_waiting(from))
		return;
	fill_call(slot, thread);
	if (now_ns > slot->start_ns)
		thread->waited_ns = now_ns - slot->start_ns;
	if (!from->has_stack)
		return;
	const struct stall_ring_stack_copy *copy = &from->copy;
	stall_ring_regs_fill(copy->regs, &thread->regs);
	thread->fs_base = copy->fs_base;
	thread->stack = from->stack;
	thread->stack_address = copy->address;
	thread->stack_size = from->stack ? copy->size : 0;
	thread->label =
		copy->whole && thread->stack_size >= copy->whole ? STALL_VERIFIED : STALL_TRUNCATED;
}

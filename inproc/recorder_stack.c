// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_stack.h"

#define MAX_DEPTH (1 << 20) // of a stack whose bounds nobody has given

extern void *__libc_stack_end; // ld.so: where the kernel put the arguments of the first thread

uint64_t recorder_fs_base(void)
{
	uint64_t base;

	asm("movq %%fs:0, %0" : "=r"(base)); // the thread's control block begins with its address
	return base;
}

void recorder_regs(const struct recorder_place *place, uint64_t regs[STALL_BPF_PT_REGS])
{
	for (int i = 0; i < STALL_BPF_PT_REGS; i++)
		regs[i] = 0;
	regs[STALL_BPF_BX] = place->bx;
	regs[STALL_BPF_BP] = place->bp;
	regs[STALL_BPF_R12] = place->r12;
	regs[STALL_BPF_R13] = place->r13;
	regs[STALL_BPF_R14] = place->r14;
	regs[STALL_BPF_R15] = place->r15;
	regs[STALL_BPF_IP] = place->ip;
	regs[STALL_BPF_SP] = place->sp;
}

struct stall_ring_stack *recorder_slot_stack(struct recorder_ring *ring, uint32_t index)
{
	uint64_t offset = ring->layout.stacks_offset + (uint64_t)index * ring->layout.stack_stride;

	if (!recorder_ring_has(ring, offset, sizeof(struct stall_ring_stack)))
		return NULL;
	return recorder_ring_at(ring, offset);
}

static bool is_stack_up_to(struct recorder_thread *thread, uintptr_t sp, uintptr_t end)
{
	uintptr_t page = sp & -STALL_RING_PAGE, known = end;

	if (end <= sp || end - sp > MAX_DEPTH)
		return false;
	if (thread->stack_low && thread->stack_end == end)
		known = thread->stack_low;
	for (uintptr_t at = page; at < known; at += STALL_RING_PAGE) {
		if (!recorder_is_readable(at))
			return false;
	}
	thread->stack_end = end;
	if (page < known)
		thread->stack_low = page;
	return true;
}

// The kernel keeps other mappings away from the first thread's stack: 128 MiB at least
// (arch/x86/mm/mmap.c).
void recorder_stack_is_first(struct recorder_thread *thread)
{
	thread->has_bounds = true;
	thread->stack_end = (uintptr_t)__libc_stack_end;
	thread->stack_low = thread->stack_end - MAX_DEPTH;
}

// The end of the thread's own stack, if sp is in it: readable without a hole. glibc puts the control
// block on top of a thread's stack. 0: another stack, of a coroutine or a signal handler.
//
// A thread that pthread_create() has not made has to find out: what it has used is present, so that
// takes a call for each page once, and waits for nothing.
static uintptr_t own_end(struct recorder_thread *thread, uintptr_t sp)
{
	uintptr_t base = recorder_fs_base();

	if (thread->has_bounds)
		return sp >= thread->stack_low && sp < thread->stack_end ? thread->stack_end : 0;
	return is_stack_up_to(thread, sp, base) ? base : 0;
}

bool recorder_is_one_stack(struct recorder_thread *thread, uintptr_t a, uintptr_t b)
{
	uintptr_t low = a < b ? a : b, high = a < b ? b : a;

	return high < own_end(thread, low);
}

// As much as there is room for.
static uint32_t make_room(struct recorder_ring *ring, uint8_t *to, uint32_t room)
{
	uint64_t start = to - (uint8_t *)ring->header, at = start, end = start + room;

	if (room && recorder_ring_has(ring, start, room))
		return room;
	while (at < end && recorder_ring_has(ring, at, 1))
		at = (at | (STALL_RING_PAGE - 1)) + 1;
	return (at < end ? at : end) - start;
}

uint32_t recorder_stack_copy(struct recorder_ring *ring, struct recorder_thread *thread,
			     uintptr_t sp, uint8_t *to, uint32_t room, uint64_t *ret_whole)
{
	uintptr_t end = own_end(thread, sp);
	uint64_t whole = end ? end - sp : 0;
	// Another stack may end anywhere; we run on this page of it.
	uint64_t most = end ? whole : STALL_RING_PAGE - (sp & (STALL_RING_PAGE - 1));
	uint32_t size = make_room(ring, to, most < room ? most : room);

	recorder_copy(to, (void *)sp, size);
	if (!size)
		recorder_ring_lost(ring, STALL_LOST_STACK_READ);
	else if (size != whole)
		recorder_ring_lost(ring, STALL_LOST_STACK_SHORT);
	*ret_whole = whole;
	return size;
}

// The 32 bytes from the object on are part of it. The bytes before it are not, and are left out
// where their page may not exist.
__attribute__((no_sanitize("address"))) void recorder_read_words(uint64_t object,
								 uint8_t words[STALL_RING_WORDS])
{
	const uint64_t *from = (const uint64_t *)(uintptr_t)(object - 16);
	uint64_t *to = (uint64_t *)words;
	bool has_before = (object & (STALL_RING_PAGE - 1)) >= 16;

	for (int i = 0; i < STALL_RING_WORDS / 8; i++)
		to[i] = i >= 2 || has_before ? __atomic_load_n(&from[i], __ATOMIC_RELAXED) : 0;
}

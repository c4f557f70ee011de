// SPDX-License-Identifier: Apache-2.0
// The memory of the ring's file. It exists before it is touched, or a full disk would be a SIGBUS.
#include "inproc/recorder_memory.h"

#define MAX_TRIES 4
#define CHUNK (64 * STALL_RING_PAGE)	// that is made at once: on a full disk all or nothing of it
#define CELL_ROOM (4 * STALL_RING_PAGE) // of a record with its stack

// The stacks of how many threads have so much room each: a thousand have 18 MB. Servers wait with
// 12 to 22 KiB on their stacks.
static const struct {
	uint32_t slots, room;
} rooms[] = {{64, 65536}, {256, 24576}, {UINT32_MAX, 12288}};

static pid_t process; // ours

__attribute__((constructor)) static void remember_process(void)
{
	process = raw_call0(SYS_getpid);
}

bool recorder_is_own_process(void)
{
	return raw_call0(SYS_getpid) == process;
}

void recorder_memory_forget(void)
{
	process = raw_call0(SYS_getpid);
}

void recorder_ring_lost(struct recorder_ring *ring, enum stall_wait_lost cause)
{
	__atomic_fetch_add(&ring->header->lost[cause], 1, __ATOMIC_RELAXED);
}

static uint64_t bit_of(uint64_t page)
{
	return 1ULL << page % 64;
}

static bool is_there(uint64_t page)
{
	return __atomic_load_n(&recorder_state.there[page / 64], __ATOMIC_ACQUIRE) & bit_of(page);
}

bool recorder_ring_has_already(const struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	uint64_t first = offset / STALL_RING_PAGE, last = (offset + size - 1) / STALL_RING_PAGE;

	while (!ring->is_whole && first <= last) {
		if (!is_there(first++))
			return false;
	}
	return true;
}

bool recorder_ring_make(struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	uint64_t first = offset / STALL_RING_PAGE, end = (offset + size - 1) / STALL_RING_PAGE + 1;
	long result = -EINTR;

	if (recorder_ring_has_already(ring, offset, size))
		return true;
	for (int i = 0; i < MAX_TRIES && (result == -EINTR || result == -EAGAIN); i++)
		result = raw_call3(SYS_madvise, recorder_ring_at(ring, first * STALL_RING_PAGE),
				   (end - first) * STALL_RING_PAGE, RECORDER_POPULATE_WRITE);
	for (uint64_t page = first; !result && page < end; page++)
		__atomic_fetch_or(&recorder_state.there[page / 64], bit_of(page), __ATOMIC_RELEASE);
	return !result;
}

bool recorder_ring_has(struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	return recorder_ring_has_already(ring, offset, size) ||
	       (!__atomic_load_n(&recorder_state.has_threads, __ATOMIC_RELAXED) &&
		recorder_ring_make(ring, offset, size));
}

static void make_in_chunks(struct recorder_ring *ring, uint64_t offset, uint64_t size)
{
	for (uint64_t end = offset + size; offset < end; offset += CHUNK)
		recorder_ring_make(ring, offset, end - offset < CHUNK ? end - offset : CHUNK);
}

static uint64_t stack_room(const struct recorder_ring *ring, uint32_t slot)
{
	int i = 0;

	while (slot >= rooms[i].slots)
		i++;
	return rooms[i].room < ring->layout.stack_stride ? rooms[i].room
							 : ring->layout.stack_stride;
}

// With all below it: readers read up to the last. On a full disk they would find a hole, and cannot
// know that the file was not cut.
static bool make_slot(struct recorder_ring *ring, uint32_t slot)
{
	const struct stall_ring_header *layout = &ring->layout;

	if (!recorder_ring_make(ring, layout->slots_offset,
				(slot + 1ULL) * sizeof(struct stall_wait_slot)))
		return false;
	recorder_ring_make(ring, layout->stacks_offset + (uint64_t)slot * layout->stack_stride,
			   stack_room(ring, slot));
	recorder_touch(&recorder_state.files[slot], sizeof(recorder_state.files[slot]));
	return true;
}

// What all threads use, the most important first.
static void make_common(struct recorder_ring *ring)
{
	const struct stall_ring_header *layout = &ring->layout;

	recorder_touch_library();
	make_in_chunks(ring, layout->stats_offset, layout->names_offset - layout->stats_offset);
	make_in_chunks(ring, layout->maps_offset, 2ULL * layout->maps_stride);
	for (uint32_t i = 0; i < layout->cell_count; i++)
		recorder_ring_make(ring, layout->records_offset + (uint64_t)i * layout->cell_stride,
				   layout->cell_stride < CELL_ROOM ? layout->cell_stride
								   : CELL_ROOM);
	make_in_chunks(ring, layout->names_offset, layout->records_offset - layout->names_offset);
}

void recorder_ready_slots(struct recorder_ring *ring, uint32_t count, bool *ret_more)
{
	struct recorder_state *state = &recorder_state;
	uint32_t ready = __atomic_load_n(&state->slots_ready, __ATOMIC_ACQUIRE), slot = ready;

	if (count > ring->layout.slot_count || ring->is_whole)
		count = ring->layout.slot_count;
	if (!ready && ring->is_whole)
		recorder_touch(ring->header, ring->layout.file_size);
	while (slot < count && make_slot(ring, slot))
		slot++;
	if (!ready)
		make_common(ring);
	*ret_more = slot > ready;
	while (ready < slot && !__atomic_compare_exchange_n(&state->slots_ready, &ready, slot, true,
							    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

uint32_t recorder_slots_ready(const struct recorder_ring *ring)
{
	if (!__atomic_load_n(&recorder_state.has_threads, __ATOMIC_RELAXED))
		return ring->layout.slot_count;
	return __atomic_load_n(&recorder_state.slots_ready, __ATOMIC_ACQUIRE);
}

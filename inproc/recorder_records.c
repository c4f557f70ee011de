// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_records.h"

#include "inproc/recorder_maps.h"
#include "inproc/recorder_stack.h"
#include "inproc/recorder_stats.h"

#define COST_NS 1000000ULL    // a thousand in a second,
#define BURST_NS 125000000ULL // and so many at once as there are cells
#define MAX_TRIES 4
#define KEY_PAUSE_NS 100000000ULL // between records of a key that may be no lock at all

static bool is_in_rate(uint64_t now)
{
	uint64_t *record_clock = &recorder_state.record_clock;
	uint64_t seen = __atomic_load_n(record_clock, __ATOMIC_RELAXED);

	for (int i = 0; i < MAX_TRIES; i++) {
		uint64_t due = seen + BURST_NS < now ? now - BURST_NS : seen;

		if (due > now)
			return false;
		if (__atomic_compare_exchange_n(record_clock, &seen, due + COST_NS, false,
						__ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return true;
	}
	return true; // many threads write at this moment: counted next time
}

bool recorder_is_due(uint64_t *last_ns, uint64_t now, uint64_t pause_ns)
{
	uint64_t seen = __atomic_load_n(last_ns, __ATOMIC_RELAXED);

	return (!seen || now - seen >= pause_ns) &&
	       __atomic_compare_exchange_n(last_ns, &seen, now, false, __ATOMIC_RELAXED,
					   __ATOMIC_RELAXED);
}

// A condition may be one of idle threads, of which there are many: until a reader has set its role,
// a few records are enough.
bool recorder_may_record(struct recorder_ring *ring, struct stall_wait_stat *stat, uint32_t role,
			 uint64_t *last_ns, uint64_t now)
{
	if (role == STALL_ROLE_COND)
		return false;
	bool is_limited = recorder_stat_is_own(ring, stat) && last_ns;
	if ((!is_limited || recorder_is_due(last_ns, now, KEY_PAUSE_NS)) && is_in_rate(now))
		return true;
	recorder_ring_lost(ring, STALL_LOST_RATE);
	return false;
}

static void fill(struct recorder_ring *ring, struct recorder_thread *thread,
		 struct stall_ring_cell *cell, const struct recorder_event *event)
{
	struct stall_wait_record *record = &cell->record;
	uint32_t room = ring->layout.cell_stride - sizeof(*cell);

	recorder_clear(record, sizeof(*record));
	record->magic = STALL_BPF_MAGIC;
	record->type = event->type;
	record->tid = record->ns_tid = thread->slot->tid;
	record->tgid = ring->layout.pid;
	record->operation = event->operation;
	record->key = event->key;
	record->start_ns = event->start_ns;
	record->now_ns = event->now_ns;
	record->result = event->result;
	record->value = event->value;
	record->size = event->size;
	record->slot = thread->index;
	record->seq = event->seq;
	record->flags = event->flags;
	recorder_read_comm(record->comm);
	if (event->words)
		recorder_copy(cell->words, event->words, sizeof(cell->words));
	else
		recorder_clear(cell->words, sizeof(cell->words));
	uint64_t regs[STALL_BPF_PT_REGS];
	recorder_regs(event->place, regs);
	recorder_copy(record->regs, regs, sizeof(regs));
	record->stack_address = event->place->sp;
	record->stack_size = recorder_stack_copy(ring, thread, event->place->sp, cell->stack, room,
						 (uint64_t *)&cell->whole);
}

static bool record(struct recorder_ring *ring, struct recorder_thread *thread,
		   const struct recorder_event *event)
{
	recorder_maps_refresh_alone(ring, event->now_ns);
	uint64_t number = __atomic_fetch_add(&ring->header->head, 1, __ATOMIC_RELAXED);
	uint64_t offset = ring->layout.records_offset +
			  (number & (ring->layout.cell_count - 1)) * ring->layout.cell_stride;
	struct stall_ring_cell *cell = recorder_ring_at(ring, offset);

	if (!recorder_ring_has(ring, offset, sizeof(*cell))) {
		recorder_ring_lost(ring, STALL_LOST_RING_FULL);
		return false;
	}
	__u64 ticket = __atomic_load_n(&cell->ticket, __ATOMIC_RELAXED);
	if ((ticket & 1) || ticket > 2 * number ||
	    !__atomic_compare_exchange_n(&cell->ticket, &ticket, 2 * number + 1, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		recorder_ring_lost(ring, STALL_LOST_RING_FULL);
		return false;
	}
	recorder_write_barrier();
	fill(ring, thread, cell, event);
	__atomic_store_n(&cell->ticket, 2 * number + 2, __ATOMIC_RELEASE);
	return true;
}

bool recorder_record(struct recorder_ring *ring, struct recorder_thread *thread,
		     const struct recorder_event *event)
{
	uint64_t blocked = recorder_block_signals();
	bool is_recorded = record(ring, thread, event);

	recorder_restore_signals(blocked);
	return is_recorded;
}

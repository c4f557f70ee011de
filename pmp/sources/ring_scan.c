// SPDX-License-Identifier: Apache-2.0
#include "sources/ring_scan.h"

#include <stdlib.h>
#include <string.h>

#define MAX_REPORTED 64 // at once: records must be read, too
#define LONGEST_NS UINT64_C(50000000)
#define SHORTEST_NS UINT64_C(1000000)
#define SCAN_AGAIN_NS UINT64_C(500000)
// A thread copies its stack when its patience is over, 10 ms at most (recorder.h), if it gets a
// CPU. The scan waits for it this many times, some 20 ms. Where all CPUs were busy, neither side
// had time.
#define STACK_SCANS 20

struct stall_error *stall_ring_scan_init(struct stall_ring_scan *scan)
{
	scan->slots = calloc(stall_ring_header(scan->ring)->slot_count, sizeof(*scan->slots));
	scan->stack = malloc(stall_ring_max_stack(scan->ring) + 1);
	if (scan->slots && scan->stack)
		return NULL;
	stall_ring_scan_deinit(scan);
	return &stall_enomem;
}

void stall_ring_scan_deinit(struct stall_ring_scan *scan)
{
	free(scan->slots);
	free(scan->stack);
	scan->slots = NULL;
	scan->stack = NULL;
}

static bool find_ignored(const struct stall_ring_scan *scan, pid_t tid, size_t *ret)
{
	for (*ret = 0; *ret < scan->ignored_count; (*ret)++)
		if (scan->ignored[*ret] == tid)
			return true;
	return false;
}

bool stall_ring_scan_ignores(const struct stall_ring_scan *scan, pid_t tid)
{
	size_t at;

	return find_ignored(scan, tid, &at);
}

struct stall_error *stall_ring_scan_ignore(struct stall_ring_scan *scan, pid_t tid, bool on)
{
	size_t at;
	bool found = find_ignored(scan, tid, &at);

	if (found && !on)
		scan->ignored[at] = scan->ignored[--scan->ignored_count];
	if (found || !on)
		return NULL;
	if (scan->ignored_count == STALL_MAX_IGNORED)
		return stall_error_create(STALL_ERROR_LIMIT, "%d threads are ignored already",
					  STALL_MAX_IGNORED);
	scan->ignored[scan->ignored_count++] = tid;
	return NULL;
}

static uint64_t threshold_of(const struct stall_ring_scan *scan, uint32_t kind)
{
	return stall_ring_threshold(scan->ring, kind);
}

// A wait that begins from now on is seen at least once before it is due.
static uint64_t period_ns(const struct stall_ring_scan *scan)
{
	uint64_t least = 2 * LONGEST_NS;

	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if ((scan->kinds >> i & 1) && threshold_of(scan, i) < least)
			least = threshold_of(scan, i);
	return (least < SHORTEST_NS ? SHORTEST_NS : least) / 2;
}

void stall_ring_record_settle(const struct stall_ring_scan *scan, struct stall_wait_record *record)
{
	record->tgid = record->key.tgid = scan->pid;
	record->tid = 0; // only the other one is known
	record->slot += scan->first;
	record->server = (struct stall_wait_server){};
	// In no system call, by its registers.
	record->regs[STALL_BPF_ORIG_AX] = UINT64_MAX;
	if (record->key.kind == STALL_WAIT_FUTEX)
		record->operation |= STALL_OPERATION_OBJECT;
	if (record->now_ns < record->start_ns)
		record->now_ns = record->start_ns;
}

static struct stall_wait_record make_record(const struct stall_ring_scan *scan, size_t index,
					    const struct stall_wait_slot *slot)
{
	struct stall_wait_record record = {
		.magic = STALL_BPF_MAGIC,
		.ns_tid = slot->ns_tid,
		.operation = slot->operation,
		.key = slot->key,
		.start_ns = slot->start_ns,
		.value = slot->value,
		.size = slot->size,
		.slot = index,
		.seq = slot->seq,
	};

	memcpy(record.comm, slot->comm, sizeof(record.comm));
	return record;
}

static void report(struct stall_ring_scan *scan, size_t index, const struct stall_wait_slot *slot,
		   const struct stall_wait_handler *handler, uint64_t now_ns)
{
	struct stall_wait_record record = make_record(scan, index, slot);

	record.type = STALL_RECORD_IN_FLIGHT;
	record.now_ns = now_ns;
	record.flags = STALL_SLOT_REPORTED;
	stall_ring_record_settle(scan, &record);
	scan->slots[index].reported = scan->slots[index].settled = slot->seq;
	handler->wait(handler->arg, &record, NULL);
}

// No stall, however long it waits.
static bool is_idle(struct stall_ring_scan *scan, size_t index, const struct stall_wait_slot *slot)
{
	if (stall_ring_counts_role(scan->counts, slot) != STALL_ROLE_COND)
		return false;
	scan->slots[index].settled = slot->seq;
	return true;
}

// Threads on a condition may be idle, or wait for a lock of the server: the stack shows which.
static bool ask(struct stall_ring_scan *scan, size_t index, const struct stall_wait_slot *slot,
		const struct stall_wait_handler *handler, uint64_t now_ns)
{
	struct stall_wait_record record = make_record(scan, index, slot);
	struct stall_ring_stack_copy copy;

	if (stall_ring_counts_role(scan->counts, slot) != STALL_ROLE_UNKNOWN ||
	    !stall_ring_read_stack(scan->ring, index, slot->seq, &copy, scan->stack,
				   stall_ring_max_stack(scan->ring)) ||
	    !stall_ring_counts_ask(scan->counts, slot, now_ns))
		return false;
	record.type = STALL_RECORD_END;
	record.now_ns = record.start_ns;
	record.flags = STALL_SLOT_FIRST | STALL_SLOT_IN_FLIGHT;
	record.stack_size = copy.size;
	record.stack_address = copy.address;
	memcpy(record.regs, copy.regs, sizeof(record.regs));
	stall_ring_record_settle(scan, &record);
	handler->wait(handler->arg, &record, scan->stack);
	return true;
}

static bool is_missing_stack(const struct stall_ring_scan *scan, size_t index,
			     const struct stall_wait_slot *slot)
{
	struct stall_ring_stack_copy copy;

	// These get it at their end.
	if (stall_wait_has_bytes(slot->key.kind))
		return false;
	return !stall_ring_read_stack(scan->ring, index, slot->seq, &copy, scan->stack, 0);
}

static bool is_in_list(struct stall_ring_scan *scan, size_t index,
		       const struct stall_wait_slot *slot)
{
	struct slot_scans *slot_scans = &scan->slots[index];

	if (slot_scans->missed != slot->seq)
		slot_scans->scans = 0;
	slot_scans->missed = slot->seq;
	return slot_scans->scans++ < STACK_SCANS && is_missing_stack(scan, index, slot);
}

static void wait_until(struct stall_ring_scan *scan, uint64_t when_ns)
{
	if (when_ns < scan->next_ns)
		scan->next_ns = when_ns;
}

// Returns the number of delivered records.
static size_t scan_slot(struct stall_ring_scan *scan, size_t index,
			const struct stall_wait_slot *slot,
			const struct stall_wait_handler *handler, uint64_t now_ns)
{
	uint32_t kind = slot->key.kind;

	if (!slot->tid || kind >= STALL_WAIT_KINDS || !(scan->kinds >> kind & 1) ||
	    stall_ring_scan_ignores(scan, slot->ns_tid)) {
		scan->slots[index].settled = slot->seq;
		return 0;
	}
	if (kind == STALL_WAIT_FUTEX && slot->operation == STALL_RING_COND_WAIT) {
		if (is_idle(scan, index, slot))
			return 0;
		if (ask(scan, index, slot, handler, now_ns)) {
			wait_until(scan, now_ns + SCAN_AGAIN_NS); // it is known by then
			return 1;
		}
	}
	uint64_t due_ns = slot->start_ns + threshold_of(scan, kind);
	if (due_ns > now_ns) {
		wait_until(scan, due_ns);
		return 0;
	}
	if (is_in_list(scan, index, slot)) {
		wait_until(scan, now_ns + SCAN_AGAIN_NS);
		return 0;
	}
	report(scan, index, slot, handler, now_ns);
	return 1;
}

void stall_ring_scan_run(struct stall_ring_scan *scan, const struct stall_wait_handler *handler,
			 uint64_t now_ns)
{
	struct stall_wait_slot slot;
	size_t count, reported = 0;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(scan->ring, &count);

	scan->next_ns = now_ns + period_ns(scan);
	for (size_t i = 0; i < count && reported < MAX_REPORTED; i++) {
		uint32_t seq = slots[i].seq;

		if (!(seq & 1) || scan->slots[i].settled == seq)
			continue;
		if (stall_ring_read_slot(scan->ring, i, &slot) && (slot.seq & 1))
			reported += scan_slot(scan, i, &slot, handler, now_ns);
	}
	if (reported == MAX_REPORTED)
		scan->next_ns = now_ns;
}

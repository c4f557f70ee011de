// SPDX-License-Identifier: Apache-2.0
// Waits that the in-process libraries of servers record, each in a ring. The processes themselves
// are not read.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rings/ring_snapshot.h"
#include "sources/sources.h"
#include "sources/watched_rings.h"
#include "waits/wait_process.h"
#include "waits/wait_source.h"
#include "waits/wait_unwind.h"

// Nothing announces records. The intervals between two searches, after recent records and without.
#define POLL_NS UINT64_C(5000000)
#define QUIET_POLL_NS UINT64_C(10000000)
#define QUIET_NS UINT64_C(1000000000)
#define CHECK_NS UINT64_C(1000000000)
#define PROGRAMS_EACH 3

/* Thresholds. */

static struct stall_error *set_threshold(void *state, enum stall_wait_kind kind, uint64_t ns)
{
	struct stall_watched_rings *source = state;

	source->options.asked |= 1u << kind;
	source->options.threshold_ns[kind] = ns;
	for (size_t i = 0; i < source->count; i++) {
		const struct stall_watched_ring *ringed = &source->rings[i];
		if (!stall_watched_ring_set_threshold(&source->rings[i], kind, ns))
			return stall_error_create(
				STALL_ERROR_UNSUPPORTED,
				"the threshold of process %d stays as it is: %s cannot be written "
				"(be its owner, or root)",
				ringed->pid, stall_ring_path(ringed->ring));
	}
	return NULL;
}

static uint64_t threshold(void *state, pid_t pid, enum stall_wait_kind kind)
{
	const struct stall_watched_rings *source = state;
	uint64_t lowest = UINT64_MAX;

	for (size_t i = 0; i < source->count; i++) {
		const struct stall_watched_ring *ringed = &source->rings[i];
		uint64_t ns = stall_ring_threshold(ringed->ring, kind);
		if ((!pid || ringed->pid == pid) && ns < lowest)
			lowest = ns;
	}
	return lowest == UINT64_MAX ? source->options.threshold_ns[kind] : lowest;
}

static struct stall_error *create_maps(void *arg, const struct stall_target *target,
				       struct stall_maps *previous, struct stall_open_files *files,
				       struct stall_maps **ret)
{
	const struct stall_watched_ring *ringed = arg;

	return stall_ring_maps_create(ringed->ring, target, -1, previous, files, ret);
}

static struct stall_error *snapshot(void *state, struct stall_arena *arena, pid_t pid,
				    struct stall_snapshot *previous, struct stall_snapshot **ret)
{
	struct stall_watched_rings *source = state;
	struct stall_watched_ring *ringed = stall_watched_ring_find(source, pid);
	struct stall_snapshot *made = NULL;
	struct stall_error *err = NULL;

	if (ringed && ringed->replaced) {
		err = stall_watched_ring_replace(source, &ringed);
	} else {
		if (ringed && !ringed->added) // of a process that is not watched after all
			stall_watched_ring_drop(source, ringed);
		if (!ringed || !ringed->added)
			err = stall_watched_ring_open(source, pid, &ringed);
	}
	if (err)
		return err;
	const struct stall_maps_source maps = {.create = create_maps, .arg = ringed};
	err = stall_snapshot_create_from(arena, &pid, 1, previous, &maps, &made);
	if (!err)
		err = stall_ring_name_process(ringed->ring, &made->processes[0]);
	if (err) {
		stall_snapshot_destroy(made);
		return err;
	}
	stall_ring_snapshot_init(made);
	*ret = made;
	return NULL;
}

static struct stall_error *add(void *state, pid_t pid)
{
	struct stall_watched_rings *source = state;

	return stall_watched_ring_begin(source,
					stall_watched_ring_find(source,
								pid)); // opened by snapshot()
}

static void remove_process(void *state, pid_t pid)
{
	struct stall_watched_rings *source = state;
	struct stall_watched_ring *ringed = stall_watched_ring_find(source, pid);

	if (ringed)
		stall_watched_ring_drop(source, ringed);
}

static struct stall_error *probe_server(void *state, struct stall_worker *worker,
					const struct stall_snapshot *snapshot)
{
	return NULL;
}

// What the library counts for locks and files is counted in the server: its threads cannot be
// distinguished there.
static struct stall_error *ignore(void *state, pid_t pid, pid_t tid, bool on)
{
	struct stall_watched_ring *ringed = stall_watched_ring_find(state, pid);

	return ringed ? stall_ring_scan_ignore(&ringed->scan, tid, on) : NULL;
}

static void destroy(void *state)
{
	struct stall_watched_rings *source = state;

	while (source->count)
		stall_watched_ring_drop(source, &source->rings[source->count - 1]);
	stall_ring_ghosts_deinit(&source->ghosts);
	free(source->rings);
	free(source->stack);
	free(source);
}

/* Scans. */

static int fd(void *state)
{
	return -1;
}

static int timeout_ms(void *state)
{
	const struct stall_watched_rings *source = state;
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	bool is_quiet = now_ns - source->recorded_ns >= QUIET_NS;
	uint64_t left_ns = is_quiet ? QUIET_POLL_NS : POLL_NS;

	for (size_t i = 0; i < source->count; i++) {
		uint64_t next_ns = source->rings[i].scan.next_ns;
		uint64_t until_ns = next_ns > now_ns ? next_ns - now_ns : 0;
		if (until_ns < left_ns)
			left_ns = until_ns;
	}
	return (int)((left_ns + 999999) / 1000000);
}

static const char *in_flight_by(void *state)
{
	return "reader";
}

static struct stall_ring_trouble find_trouble(const struct stall_watched_rings *source,
					      const struct stall_watched_ring *ringed)
{
	const volatile struct stall_ring_header *live = stall_ring_live(ringed->ring);

	return (struct stall_ring_trouble){
		.off = !live->enabled,
		.cut = stall_ring_was_cut(ringed->ring),
		.read_only = source->options.asked && !stall_ring_is_writable(ringed->ring),
		.maps_failed = live->maps_failed,
	};
}

static struct stall_error *poll_source(void *state, uint64_t now_ns, bool *ret_changed)
{
	struct stall_watched_rings *source = state;
	bool changed = false;

	if (now_ns - source->checked_ns < CHECK_NS)
		return NULL;
	source->checked_ns = now_ns;
	for (size_t i = 0; i < source->count; i++) {
		struct stall_watched_ring *ringed = &source->rings[i];
		const struct stall_ring_trouble trouble = find_trouble(source, ringed);

		changed |= trouble.off != ringed->trouble.off ||
			   trouble.cut != ringed->trouble.cut ||
			   trouble.read_only != ringed->trouble.read_only ||
			   trouble.maps_failed != ringed->trouble.maps_failed;
		ringed->trouble = trouble;
		stall_watched_ring_check(source, ringed);
	}
	*ret_changed = changed;
	return NULL;
}

static void take_records(struct stall_watched_rings *source, struct stall_watched_ring *ringed,
			 const struct stall_wait_handler *handler, size_t max)
{
	uint64_t head = stall_ring_live(ringed->ring)->head;
	uint64_t cells = stall_ring_header(ringed->ring)->cell_count;
	struct stall_ring_record_copy copy;

	// For the ring that would mean the oldest record, and no loss.
	if (!ringed->cursor && head > cells)
		ringed->overwritten += head - cells;
	while (max-- && stall_ring_next_record(ringed->ring, &ringed->cursor, &ringed->overwritten,
					       &copy, source->stack, source->stack_room)) {
		struct stall_wait_record *record = &copy.record;
		source->recorded_ns = stall_clock_ns(CLOCK_MONOTONIC);
		if (record->key.kind >= STALL_WAIT_KINDS ||
		    !(source->options.kinds >> record->key.kind & 1) ||
		    stall_ring_scan_ignores(&ringed->scan, record->ns_tid) ||
		    (record->type != STALL_RECORD_END && record->type != STALL_RECORD_WAKER))
			continue;
		stall_ring_record_settle(&ringed->scan, record);
		record->flags &= STALL_SLOT_FIRST;
		handler->wait(handler->arg, record, source->stack);
	}
}

// The process has executed another program: a new snapshot of it is taken.
static void report_replaced(const struct stall_watched_ring *ringed,
			    const struct stall_wait_handler *handler)
{
	const struct stall_wait_record record = {
		.magic = STALL_BPF_MAGIC,
		.type = STALL_RECORD_PROCESS,
		.tgid = ringed->pid,
		.result = STALL_PROCESS_EXECED,
	};

	handler->wait(handler->arg, &record, NULL);
}

// Waits in flight come before waits that have ended.
static struct stall_error *consume(void *state, const struct stall_wait_handler *handler,
				   size_t max)
{
	struct stall_watched_rings *source = state;
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	for (size_t i = 0; i < source->count; i++)
		if (source->rings[i].added && !source->rings[i].left &&
		    now_ns >= source->rings[i].scan.next_ns)
			stall_ring_scan_run(&source->rings[i].scan, handler, now_ns);
	if (handler->alarms)
		handler->alarms(handler->arg);
	for (size_t i = 0; i < source->count; i++)
		if (source->rings[i].added)
			take_records(source, &source->rings[i], handler, max);
	for (size_t i = 0; i < source->count; i++)
		if (source->rings[i].replaced)
			report_replaced(&source->rings[i], handler);
	return NULL;
}

/* Slots. */

static size_t slot_count(void *state)
{
	const struct stall_watched_rings *source = state;

	if (!source->count)
		return 0;
	const struct stall_watched_ring *last = &source->rings[source->count - 1];
	return last->scan.first + stall_ring_header(last->ring)->slot_count;
}

static bool read_slot(void *state, size_t index, struct stall_wait_now *ret)
{
	const struct stall_watched_ring *ringed = stall_watched_ring_of_slot(state, index);
	struct stall_wait_slot slot;
	size_t count;

	if (!ringed || !ringed->added || ringed->left)
		return false;
	index -= ringed->scan.first;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(ringed->ring, &count);
	if (index >= count || !(slots[index].seq & 1) ||
	    !stall_ring_read_slot(ringed->ring, index, &slot) || !(slot.seq & 1) ||
	    stall_ring_scan_ignores(&ringed->scan, slot.ns_tid))
		return false;
	*ret = (struct stall_wait_now){
		.key = slot.key,
		.start_ns = slot.start_ns,
		.seq = slot.seq,
		.reported = ringed->scan.slots[index].reported == slot.seq,
		.operation = slot.operation,
		.value = slot.value,
	};
	ret->key.tgid = ringed->pid;
	if (slot.key.kind == STALL_WAIT_FUTEX)
		ret->operation |= STALL_OPERATION_OBJECT;
	return true;
}

static bool slot_is(void *state, size_t index, uint32_t seq)
{
	const struct stall_watched_ring *ringed = stall_watched_ring_of_slot(state, index);
	size_t count;

	if (!ringed || ringed->left || !(seq & 1))
		return false;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(ringed->ring, &count);
	index -= ringed->scan.first;
	return index < count && __atomic_load_n(&slots[index].seq, __ATOMIC_ACQUIRE) == seq;
}

static void set_words(const struct stall_ring_stack_copy *copy, uint64_t address,
		      struct stall_futex *ret)
{
	_Static_assert(sizeof(ret->bytes) == STALL_RING_WORDS, "the same bytes");
	*ret = (struct stall_futex){.address = address, .readable = copy->words_ns};
	memcpy(ret->bytes, copy->words, sizeof(ret->bytes));
}

static void take_copy(struct stall_watched_ring *ringed, struct stall_arena *arena,
		      struct stall_wait_item *item)
{
	struct stall_wait_record *record = &item->record;
	size_t room = stall_ring_max_stack(ringed->ring), slot = record->slot - ringed->scan.first;
	struct stall_ring_stack_copy copy;
	uint8_t *stack = stall_arena_alloc(arena, room);

	item->exact =
		stack && stall_ring_read_stack(ringed->ring, slot, record->seq, &copy, stack, room);
	if (!item->exact)
		return;
	memcpy(record->regs, copy.regs, sizeof(record->regs));
	record->regs[STALL_BPF_ORIG_AX] = UINT64_MAX;
	if (record->key.kind == STALL_WAIT_FUTEX)
		set_words(&copy, record->key.id, &item->futex);
	item->stack = stack;
	item->stack_size = copy.size;
	item->stack_address = copy.address;
}

static struct stall_error *copy_stacks(void *state, struct stall_arena *arena,
				       const struct stall_wait_process *process,
				       struct stall_wait_item *const *items, size_t count)
{
	struct stall_watched_ring *ringed = stall_watched_ring_find(state, process->pid);

	for (size_t i = 0; ringed && i < count; i++)
		take_copy(ringed, arena, items[i]);
	return NULL;
}

// As the last waiter has read them.
static bool read_word(void *state, const struct stall_wait_process *process,
		      const struct stall_wait_key *key, struct stall_futex *ret)
{
	const struct stall_watched_ring *ringed = stall_watched_ring_find(state, process->pid);
	uint64_t newest_ns = 0;
	size_t count;

	if (!ringed)
		return false;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(ringed->ring, &count);
	for (size_t i = 0; i < count; i++) {
		struct stall_ring_stack_copy copy;
		uint32_t seq = slots[i].seq;
		if (!(seq & 1) || slots[i].key.id != key->id || slots[i].key.kind != key->kind ||
		    !stall_ring_read_stack(ringed->ring, i, seq, &copy, ringed->scan.stack, 0) ||
		    copy.words_ns <= newest_ns)
			continue;
		newest_ns = copy.words_ns;
		set_words(&copy, key->id, ret);
	}
	return newest_ns;
}

/* Stats: those of all rings, then the ghosts. */

// *index becomes the index in the ring; NULL: it is a ghost's.
static struct stall_watched_ring *find_stat(const struct stall_watched_rings *source, size_t *index)
{
	for (size_t i = 0; i < source->count; i++) {
		struct stall_watched_ring *ringed = &source->rings[i];
		size_t size = ringed->counts ? stall_ring_counts_size(ringed->counts) : 0;
		if (*index < size)
			return ringed;
		*index -= size;
	}
	return NULL;
}

static size_t stat_count(void *state)
{
	const struct stall_watched_rings *source = state;
	size_t count = source->ghosts.count;

	for (size_t i = 0; i < source->count; i++)
		if (source->rings[i].counts)
			count += stall_ring_counts_size(source->rings[i].counts);
	return count;
}

static bool read_stat(void *state, size_t index, struct stall_wait_stat *ret)
{
	const struct stall_watched_rings *source = state;
	const struct stall_watched_ring *ringed = find_stat(source, &index);

	if (ringed)
		return stall_ring_counts_read(ringed->counts, index, ret);
	if (index >= source->ghosts.count)
		return false;
	*ret = source->ghosts.stats[index];
	return true;
}

static uint64_t take_max(void *state, size_t index)
{
	struct stall_watched_rings *source = state;
	const struct stall_watched_ring *ringed = find_stat(source, &index);

	if (ringed)
		return stall_ring_counts_take_max(ringed->counts, index);
	uint64_t max_ns = source->ghosts.stats[index].max_ns;
	source->ghosts.stats[index].max_ns = 0;
	return max_ns;
}

static bool retire(void *state, size_t index, struct stall_wait_stat *ret)
{
	struct stall_watched_rings *source = state;
	const struct stall_watched_ring *ringed = find_stat(source, &index);

	if (ringed)
		return stall_ring_counts_retire(ringed->counts, index, ret);
	if (index >= source->ghosts.count)
		return false;
	*ret = stall_ring_ghosts_take(&source->ghosts, index);
	return true;
}

static void set_role(void *state, const struct stall_wait_key *key, enum stall_wait_role role)
{
	const struct stall_watched_ring *ringed = stall_watched_ring_find(state, key->tgid);

	if (ringed && ringed->counts)
		stall_ring_counts_set_role(ringed->counts, key, role);
}

static bool find_file(void *state, const struct stall_wait_key *key, struct stall_wait_file *ret)
{
	const struct stall_watched_ring *ringed = stall_watched_ring_find(state, key->tgid);

	return ringed && ringed->counts && stall_ring_counts_file(ringed->counts, key, ret);
}

/* Data about the rings themselves. */

static void lost(void *state, uint64_t ret[STALL_LOST_CAUSES])
{
	const struct stall_watched_rings *source = state;

	memcpy(ret, source->lost, sizeof(source->lost));
	for (size_t i = 0; i < source->count; i++)
		if (source->rings[i].added)
			stall_watched_ring_add_lost(&source->rings[i], ret);
}

static const char *why_not(struct stall_watched_ring *ringed)
{
	const struct stall_ring_header *header = stall_ring_header(ringed->ring);

	if (ringed->trouble.cut)
		return "the file was cut: nothing of it is reported any more; restart the server";
	if (ringed->trouble.off) {
		snprintf(ringed->why_off, sizeof(ringed->why_off),
			 "the agent of process %d is switched off: stallscope inproc on",
			 header->pid);
		return ringed->why_off;
	}
	if (ringed->trouble.maps_failed)
		return "the server cannot read its own /proc/self/maps: frames stay without names";
	return NULL;
}

static const char *why_read_only(struct stall_watched_ring *ringed)
{
	if (!ringed->trouble.read_only)
		return NULL;
	snprintf(ringed->why_read_only, sizeof(ringed->why_read_only),
		 "the ring cannot be written (be its owner, or root): thresholds stay those that "
		 "it has");
	return ringed->why_read_only;
}

static struct stall_error *programs(void *state, struct stall_wait_program **ret, size_t *ret_count)
{
	static const struct stall_wait_program uprobes = {
		"server functions", "uprobes",
		"a ring has none: InnoDB's latches are known by their addresses, and which row or "
		"metadata lock is waited for is not known"};
	struct stall_watched_rings *source = state;
	struct stall_wait_program *all = calloc(source->count * PROGRAMS_EACH + 1, sizeof(*all));
	size_t count = 0;

	if (!all)
		return &stall_enomem;
	for (size_t i = 0; i < source->count; i++) {
		struct stall_watched_ring *ringed = &source->rings[i];

		ringed->trouble = find_trouble(source, ringed);
		all[count++] = (struct stall_wait_program){"ring", stall_ring_path(ringed->ring),
							   why_not(ringed)};
		if (source->options.asked)
			all[count++] = (struct stall_wait_program){"thresholds", "ring",
								   why_read_only(ringed)};
	}
	all[count++] = uprobes;
	*ret = all;
	*ret_count = count;
	return NULL;
}

static const struct stall_wait_source_calls calls = {
	.name = "inproc",
	.has_objects = true,
	.destroy = destroy,
	.snapshot = snapshot,
	.add = add,
	.remove = remove_process,
	.probe_server = probe_server,
	.ignore = ignore,
	.set_threshold = set_threshold,
	.threshold = threshold,
	.fd = fd,
	.timeout_ms = timeout_ms,
	.in_flight_by = in_flight_by,
	.poll = poll_source,
	.consume = consume,
	.slot_limit = slot_count,
	.slot_count = slot_count,
	.read_slot = read_slot,
	.slot_is = slot_is,
	.copy_stacks = copy_stacks,
	.read_word = read_word,
	.stat_count = stat_count,
	.read_stat = read_stat,
	.take_max = take_max,
	.retire = retire,
	.set_role = set_role,
	.find_file = find_file,
	.lost = lost,
	.programs = programs,
};

struct stall_error *stall_wait_source_ring(const struct stall_wait_source_options *options,
					   struct stall_wait_source *ret)
{
	struct stall_watched_rings *source = calloc(1, sizeof(*source));

	if (!source)
		return &stall_enomem;
	source->options = *options;
	*ret = (struct stall_wait_source){.calls = &calls, .state = source};
	return NULL;
}

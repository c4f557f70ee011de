// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder.h"

#include "inproc/recorder_maps.h"
#include "inproc/recorder_records.h"
#include "inproc/recorder_ring.h"
#include "inproc/recorder_settings.h"
#include "inproc/recorder_slots.h"
#include "inproc/recorder_stack.h"
#include "inproc/recorder_state.h"
#include "inproc/recorder_stats.h"
#include "inproc/recorder_threads.h"
#include "inproc/recorder_transfers.h"

#define MAX_NESTED 16
#define SIGNAL_FRAME 512 // struct rt_sigframe without the state of the FPU is larger
#define WAITS_AT_ONCE 16 // added to header.waits at once
#define WAITS_PER_NAME 64
#define MAX_PATIENCE_NS 10000000ULL
// Of transfers whose start is only known to a tick of the coarse clock, 10 ms at most: a shorter
// threshold may be over within two ticks.
#define LIGHT_THRESHOLD_NS 20000000ULL
#define MIN_PATIENCE_NS 100000ULL
#define QUEUE 8			   // so many waiters are a stall, however short each wait is
#define QUEUE_PAUSE_NS 20000000ULL // between recorded releases of an object with such a queue

static __thread struct recorder_thread self __attribute__((tls_model("initial-exec")));

// A signal handler of this thread sees it in this order.
static void set_doing(struct recorder_thread *thread, enum recorder_doing doing)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	*(volatile uint8_t *)&thread->doing = doing;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static bool is_enabled(const struct recorder_ring *ring)
{
	return __atomic_load_n(&ring->header->enabled, __ATOMIC_RELAXED) != 0;
}

bool recorder_is_off(void)
{
	const struct recorder_ring *ring = recorder_ring();

	return ring && !is_enabled(ring);
}

static bool is_published(const struct recorder_ring *ring, const struct recorder_thread *thread)
{
	return recorder_has_slot(ring, thread) && (thread->seq & 1);
}

static void set_seq(struct recorder_thread *thread, uint32_t seq)
{
	thread->seq = seq;
	__atomic_store_n(&thread->slot->seq, seq, __ATOMIC_RELEASE);
	recorder_write_barrier();
}

// A wait without an end: a handler jumped out of it, or its thread was cancelled. Its result and
// the time of its end are not known.
static void give_up(struct recorder_ring *ring, struct recorder_thread *thread)
{
	if (!is_published(ring, thread))
		return;
	if (thread->marked)
		recorder_unmark(thread);
	set_seq(thread, thread->seq + 1);
	recorder_ring_lost(ring, STALL_LOST_MISSED);
}

/*
 * The thread is in a call of the library already: a signal handler runs, or the thread left that
 * call without ending it. It has certainly left if our frame is where that call's was, or above it
 * on the same stack: for a handler the kernel saves a frame in between. Handlers rarely wait: after
 * some nested calls the outer call counts as left, too, unless it was in the middle of a write. If
 * that is wrong, its end will find no wait.
 */
static bool is_nested(struct recorder_thread *thread, uintptr_t frame)
{
	if (frame > thread->frame - SIGNAL_FRAME &&
	    recorder_is_one_stack(thread, thread->frame, frame))
		return false;
	return thread->doing == RECORDER_WRITES || ++thread->nested < MAX_NESTED;
}

struct recorder_thread *recorder_enter(void)
{
	struct recorder_thread *thread = &self;
	struct recorder_ring *ring = recorder_ring();
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);

	if (thread->ended || (ring ? !is_enabled(ring) : recorder_ring_failed()))
		return NULL;
	if (thread->doing != RECORDER_IDLE) {
		if (is_nested(thread, frame)) {
			if (ring)
				recorder_ring_lost(ring, STALL_LOST_MISSED);
			return NULL;
		}
		give_up(ring, thread);
	}
	thread->frame = frame;
	thread->nested = 0;
	set_doing(thread, RECORDER_WRITES);
	return thread;
}

void recorder_leave(struct recorder_thread *thread)
{
	set_doing(thread, RECORDER_IDLE);
}

/* Begin. */

// `rm`, for example, calls unlink(2): a ring is for programs that wait for locks or disks.
static bool is_worth_a_ring(enum stall_wait_kind kind)
{
	return kind <= STALL_WAIT_FALLOCATE;
}

static bool has_or_takes_slot(struct recorder_ring *ring, struct recorder_thread *thread)
{
	if (recorder_has_slot(ring, thread))
		return true;
	if (!recorder_slot_is_due(thread))
		return false;
	uint64_t blocked = recorder_block_signals();
	bool is_taken = recorder_slot_take(ring, thread);
	if (is_taken)
		recorder_file_forget(thread); // of the thread that had the slot before
	recorder_restore_signals(blocked);
	return is_taken;
}

static struct recorder_ring *ring_for(struct recorder_thread *thread, enum stall_wait_kind kind)
{
	struct recorder_ring *ring =
		is_worth_a_ring(kind) ? recorder_ring_needed() : recorder_ring();

	if (!ring || !is_enabled(ring))
		return NULL;
	return has_or_takes_slot(ring, thread) ? ring : NULL;
}

// The role that the call implies. Readers find out more about conditions.
static void set_role(struct stall_wait_stat *stat, uint32_t operation)
{
	uint32_t seen = __atomic_load_n(&stat->role, __ATOMIC_RELAXED), role = seen;

	switch (operation) {
	case STALL_RING_MUTEX_LOCK:
		role = STALL_ROLE_MUTEX;
		break;
	case STALL_RING_RWLOCK_RDLOCK:
	case STALL_RING_RWLOCK_WRLOCK:
		role = STALL_ROLE_RWLOCK;
		break;
	case STALL_RING_COND_WAIT: // at the address of a former mutex
		if (role == STALL_ROLE_MUTEX || role == STALL_ROLE_RWLOCK)
			role = STALL_ROLE_UNKNOWN;
		break;
	}
	if (role != seen)
		__atomic_store_n(&stat->role, role, __ATOMIC_RELAXED);
}

static void find_stat(struct recorder_ring *ring, struct recorder_thread *thread,
		      const struct recorder_wait *wait, struct stall_wait_key *key)
{
	uint32_t mode = 0;

	if (wait->kind == STALL_WAIT_FUTEX)
		key->id = wait->object;
	else
		recorder_file_key(wait, key, &mode);
	uint64_t tag = stall_wait_tag(key);
	if (thread->tag != tag || !thread->stat ||
	    __atomic_load_n(&thread->stat->tag, __ATOMIC_ACQUIRE) != tag)
		thread->stat = recorder_stat_take(ring, key, tag);
	thread->tag = tag;
	if (!recorder_stat_is_own(ring, thread->stat))
		return;
	if (wait->kind == STALL_WAIT_FUTEX)
		set_role(thread->stat, wait->operation);
	else if (!__atomic_load_n(&thread->stat->announced, __ATOMIC_RELAXED) &&
		 (wait->path || (mode && wait->fd >= 0)))
		recorder_file_name(ring, thread->stat, tag, wait, mode);
}

static void count_begin(struct recorder_ring *ring, struct recorder_thread *thread)
{
	uint32_t count = thread->waits++, part = count % WAITS_AT_ONCE;

	if (part <= 1)
		__atomic_fetch_add(&ring->header->waits, part ? WAITS_AT_ONCE - 1 : 1,
				   __ATOMIC_RELAXED);
	// Threads may get a name after their first waits, and another one for other work.
	if (count && (!(count & (count - 1)) || count % WAITS_PER_NAME == 0))
		recorder_read_comm(thread->slot->comm);
}

static void copy_stack(struct recorder_ring *ring, struct recorder_thread *thread)
{
	struct stall_ring_stack *stack = recorder_slot_stack(ring, thread->index);
	uint32_t room = ring->layout.stack_stride - sizeof(*stack);

	if (!stack) {
		recorder_ring_lost(ring, STALL_LOST_STACK_READ);
		return;
	}
	recorder_regs(&thread->place, (uint64_t *)stack->regs);
	stack->address = thread->place.sp;
	stack->fs_base = recorder_fs_base();
	stack->size = recorder_stack_copy(ring, thread, thread->place.sp, stack->bytes, room,
					  (uint64_t *)&stack->whole);
	stack->words_ns = 0;
	thread->has_stack = true;
}

static void read_words(struct recorder_ring *ring, struct recorder_thread *thread, uint64_t now)
{
	struct stall_ring_stack *stack = recorder_slot_stack(ring, thread->index);

	if (!stack || thread->kind != STALL_WAIT_FUTEX)
		return;
	recorder_read_words(thread->object, stack->words);
	__atomic_store_n(&stack->words_ns, now, __ATOMIC_RELEASE);
}

static void publish_stack(struct recorder_ring *ring, struct recorder_thread *thread, uint64_t now)
{
	if (!thread->has_stack) {
		copy_stack(ring, thread);
		if (!thread->has_stack)
			return;
	}
	read_words(ring, thread, now);
	__atomic_store_n(&recorder_slot_stack(ring, thread->index)->seq, thread->seq,
			 __ATOMIC_RELEASE);
}

static bool is_idle_cond(const struct recorder_thread *thread)
{
	return __atomic_load_n(&thread->stat->role, __ATOMIC_RELAXED) == STALL_ROLE_COND;
}

static void mark(struct recorder_ring *ring, struct recorder_thread *thread)
{
	if (thread->marked || thread->kind != STALL_WAIT_FUTEX || is_idle_cond(thread))
		return;
	if (recorder_stat_is_own(ring, thread->stat))
		recorder_mark(thread);
	else
		recorder_ring_lost(ring, STALL_LOST_MARKS_FULL);
}

static void publish(struct recorder_ring *ring, struct recorder_thread *thread,
		    const struct recorder_wait *wait, uint64_t start_ns)
{
	struct stall_wait_slot *slot = thread->slot;
	struct stall_wait_key key = {.tgid = ring->layout.pid, .kind = wait->kind};

	find_stat(ring, thread, wait, &key);
	slot->stat = recorder_stat_index(ring, thread->stat);
	slot->key = key;
	slot->operation = wait->operation;
	slot->value = wait->value;
	slot->size = wait->size;
	slot->start_ns = thread->start_ns = start_ns ? start_ns : recorder_now();
	set_seq(thread, thread->seq + 1);
	count_begin(ring, thread);
}

void recorder_begin(struct recorder_thread *thread, const struct recorder_wait *wait,
		    const struct recorder_place *place, bool with_stack)
{
	struct recorder_ring *ring = ring_for(thread, wait->kind);

	thread->kind = wait->kind;
	thread->operation = wait->operation;
	thread->object = wait->object;
	thread->place = *place;
	thread->has_stack = false;
	thread->is_light = false;
	thread->fd = wait->fd;
	thread->file_size = wait->st ? (uint64_t)wait->st->st_size : 0;
	if (ring) {
		recorder_file_flush(thread);
		publish(ring, thread, wait, 0);
		if (with_stack)
			publish_stack(ring, thread, thread->start_ns);
		// Such waits are not seen again before they end.
		if (with_stack && wait->kind == STALL_WAIT_FUTEX)
			mark(ring, thread);
	} else {
		thread->start_ns = recorder_now();
	}
	set_doing(thread, RECORDER_WAITS);
}

static __attribute__((noinline)) void count_light(struct recorder_thread *thread)
{
	uint32_t pending = recorder_state.files[thread->index].pending;

	__atomic_fetch_add(&recorder_ring()->header->waits, pending, __ATOMIC_RELAXED);
	recorder_file_flush(thread);
}

/* Reads and writes of a file that is known. */

struct recorder_thread *recorder_begin_transfer(const struct recorder_wait *wait,
						const struct recorder_place *place)
{
	struct recorder_thread *thread = &self;
	struct recorder_ring *ring = recorder_ring();

	if (thread->doing != RECORDER_IDLE || thread->ended || !recorder_has_slot(ring, thread) ||
	    !is_enabled(ring) || recorder_threshold_of(ring, wait->kind) < LIGHT_THRESHOLD_NS)
		return NULL;
	const struct recorder_file *file = &recorder_state.files[thread->index];
	uint64_t now = recorder_clock(CLOCK_MONOTONIC_COARSE);
	if (!recorder_file_is_known(file, wait, now))
		return NULL;
	thread->frame = (uintptr_t)__builtin_frame_address(0);
	thread->nested = 0;
	set_doing(thread, RECORDER_WRITES);
	struct stall_wait_slot *slot = thread->slot;
	if (!thread->is_light) { // else the slot has it from the call before
		slot->stat = recorder_stat_index(ring, file->stat);
		slot->key = file->key;
		slot->operation = file->operation;
		thread->is_light = true;
		thread->has_stack = false;
	}
	thread->light_place = place;
	slot->value = wait->value;
	slot->size = wait->size;
	slot->start_ns = thread->start_ns = now;
	set_seq(thread, thread->seq + 1);
	set_doing(thread, RECORDER_WAITS);
	return thread;
}

bool recorder_end_transfer(struct recorder_thread *thread, uint64_t bytes)
{
	struct recorder_file *file = &recorder_state.files[thread->index];

	if (!thread->is_light || !is_published(recorder_ring(), thread) ||
	    recorder_clock(CLOCK_MONOTONIC_COARSE) > thread->start_ns)
		return false;
	set_doing(thread, RECORDER_WRITES);
	file->bytes += bytes;
	file->pending++;
	if (recorder_file_is_due(file))
		count_light(thread);
	set_seq(thread, thread->seq + 1);
	set_doing(thread, RECORDER_IDLE);
	return true;
}

// The descriptor may have become another file's since it was checked: then this is another wait.
static void check_file(struct recorder_ring *ring, struct recorder_thread *thread)
{
	struct stall_wait_slot *slot = thread->slot;
	const struct recorder_wait wait = {
		.kind = thread->kind,
		.operation = thread->operation,
		.fd = thread->fd,
	};
	struct stall_wait_key key = {.tgid = ring->layout.pid, .kind = wait.kind};
	const struct stall_wait_stat *before = thread->stat;

	find_stat(ring, thread, &wait, &key);
	if (thread->stat == before)
		return;
	set_seq(thread, thread->seq + 1);
	slot->stat = recorder_stat_index(ring, thread->stat);
	slot->key = key;
	set_seq(thread, thread->seq + 1);
}

// What recorder_begin_transfer() leaves out.
static void end_light(struct recorder_ring *ring, struct recorder_thread *thread)
{
	const struct recorder_file *file = &recorder_state.files[thread->index];

	thread->last_tick_ns = recorder_clock(CLOCK_MONOTONIC_COARSE);
	thread->place = *thread->light_place;
	thread->object = 0;
	thread->kind = file->kind;
	thread->operation = file->operation;
	thread->fd = file->fd;
	thread->stat = file->stat;
	thread->tag = file->tag;
	check_file(ring, thread);
}

// The ring was being made, or had no room, when the wait began.
static struct recorder_ring *publish_late(struct recorder_thread *thread)
{
	const struct recorder_wait wait = {
		.kind = thread->kind,
		.operation = thread->operation,
		.object = thread->object,
		.fd = -1,
	};
	struct recorder_ring *ring = ring_for(thread, wait.kind);

	if (ring)
		publish(ring, thread, &wait, thread->start_ns);
	return ring;
}

void recorder_still_waits(struct recorder_thread *thread, const struct recorder_place *place)
{
	struct recorder_ring *ring = recorder_ring();

	set_doing(thread, RECORDER_WRITES);
	if (!thread->has_stack)
		thread->place = *place;
	if (!is_published(ring, thread))
		ring = publish_late(thread);
	if (ring) {
		publish_stack(ring, thread, recorder_now());
		mark(ring, thread);
	}
	set_doing(thread, RECORDER_WAITS);
}

/* End. */

static const uint8_t *words_of(struct recorder_ring *ring, struct recorder_thread *thread,
			       int64_t result, uint8_t words[STALL_RING_WORDS])
{
	// A condition may have been destroyed by now; a mutex that we hold has not.
	if (thread->operation != STALL_RING_COND_WAIT && result == 0) {
		recorder_read_words(thread->object, words);
		return words;
	}
	struct stall_ring_stack *stack =
		thread->has_stack ? recorder_slot_stack(ring, thread->index) : NULL;
	return stack ? (const uint8_t *)stack->words : NULL;
}

struct ending {
	uint64_t now, ns;
	int64_t result;
	uint32_t flags;
};

static void record_end(struct recorder_ring *ring, struct recorder_thread *thread,
		       const struct ending *ending)
{
	const struct stall_wait_slot *slot = thread->slot;
	uint8_t words[STALL_RING_WORDS];
	struct recorder_event event = {
		.type = STALL_RECORD_END,
		.key = slot->key,
		.operation = thread->operation,
		.seq = thread->seq - 1, // of the wait
		.flags = ending->flags,
		.start_ns = thread->start_ns,
		.now_ns = ending->now,
		.value = slot->value,
		.size = slot->size,
		.result = ending->result,
		.place = &thread->place,
	};

	if (thread->kind == STALL_WAIT_FUTEX)
		event.words = words_of(ring, thread, ending->result, words);
	recorder_record(ring, thread, &event);
}

// Whether the wait gets a record: a long wait, or the first for a condition, whose stack identifies
// it.
static bool count_end(struct recorder_ring *ring, struct recorder_thread *thread,
		      struct ending *ending, uint64_t bytes)
{
	struct stall_wait_stat *stat = thread->stat;
	uint64_t ns = ending->ns;
	uint32_t role = __atomic_load_n(&stat->role, __ATOMIC_RELAXED);
	bool is_over = ns >= recorder_threshold_of(ring, thread->kind);
	bool is_cond =
		thread->kind == STALL_WAIT_FUTEX && thread->operation == STALL_RING_COND_WAIT;
	bool is_first = is_cond && recorder_stat_is_own(ring, stat) &&
			!__atomic_load_n(&stat->announced, __ATOMIC_RELAXED);

	recorder_stat_count(stat, ns, ending->now);
	if (bytes)
		__atomic_fetch_add(&stat->bytes, bytes, __ATOMIC_RELAXED);
	if (is_over)
		__atomic_fetch_add(&stat->over, 1, __ATOMIC_RELAXED);
	if (thread->slot->reported == thread->seq)
		ending->flags |= STALL_SLOT_REPORTED;
	if (thread->marked)
		ending->flags |= STALL_SLOT_MARKED;
	if (is_first)
		ending->flags |= STALL_SLOT_FIRST;
	bool is_recorded =
		(is_over || is_first) &&
		recorder_may_record(ring, stat, role,
				    is_cond ? (uint64_t *)&stat->limited_ns[0] : NULL, ending->now);
	if (is_first && is_recorded) // else the next wait gets it
		__atomic_store_n(&stat->announced, 1, __ATOMIC_RELAXED);
	return is_recorded;
}

void recorder_end(struct recorder_thread *thread, int64_t result, uint64_t bytes)
{
	struct recorder_ring *ring = recorder_ring();

	set_doing(thread, RECORDER_WRITES);
	if (!is_published(ring, thread))
		return;
	if (thread->is_light)
		end_light(ring, thread);
	struct ending ending = {.now = recorder_now(), .result = result};
	ending.ns = thread->is_light ? recorder_file_estimate(thread, ending.now)
				     : ending.now - thread->start_ns;
	// Count it first: a reader may remove the stat once no wait uses it.
	bool is_recorded = count_end(ring, thread, &ending, bytes);
	if (thread->marked)
		recorder_unmark(thread);
	set_seq(thread, thread->seq + 1);
	if (is_recorded)
		record_end(ring, thread, &ending);
	if (thread->is_light) {
		recorder_file_expire(thread);
		thread->is_light = false;
	} else if ((thread->kind == STALL_WAIT_READ || thread->kind == STALL_WAIT_WRITE) &&
		   recorder_stat_is_own(ring, thread->stat)) {
		recorder_file_learn(thread, &thread->slot->key, ending.ns);
	}
}

uint64_t recorder_patience_ns(void)
{
	struct recorder_ring *ring = recorder_ring();
	uint64_t threshold_ns = ring ? recorder_threshold_of(ring, STALL_WAIT_FUTEX)
				     : recorder_settings()->threshold_ns[STALL_WAIT_FUTEX];

	if (threshold_ns > MAX_PATIENCE_NS)
		return MAX_PATIENCE_NS;
	return threshold_ns < MIN_PATIENCE_NS ? MIN_PATIENCE_NS : threshold_ns;
}

uint64_t recorder_began_ns(const struct recorder_thread *thread)
{
	return thread->start_ns;
}

/* Releases of objects that others have waited long for. */

// At a limited rate, most recorded releases end long holds: the next one after a pause is likely
// such an end. Releases with a queue are few, and must not be lost among those with a single
// waiter.
static bool may_record_release(struct recorder_ring *ring, struct stall_wait_stat *stat,
			       bool is_queue, uint64_t now)
{
	uint64_t *last_ns = (uint64_t *)&stat->limited_ns[1];

	if (is_queue)
		return recorder_is_due(last_ns, now, QUEUE_PAUSE_NS);
	return recorder_may_record(ring, stat, stat->role, last_ns, now);
}

static void record_release(struct recorder_ring *ring, struct recorder_thread *thread,
			   uint64_t object, enum stall_ring_call call,
			   const struct recorder_place *place)
{
	struct stall_wait_key key = {
		.tgid = ring->layout.pid,
		.kind = STALL_WAIT_FUTEX,
		.id = object,
	};
	uint64_t now = recorder_now(), threshold_ns = recorder_threshold_of(ring, STALL_WAIT_FUTEX);
	uint32_t waiters;

	if (now < threshold_ns || (!recorder_mark_is_older(object, now - threshold_ns) &&
				   recorder_marked(object) < QUEUE))
		return;
	struct stall_wait_stat *stat = recorder_stat_find(ring, stall_wait_tag(&key));
	if (!stat || !__atomic_load_n(&stat->marked, __ATOMIC_RELAXED) ||
	    __atomic_load_n(&stat->role, __ATOMIC_RELAXED) == STALL_ROLE_COND)
		return;
	uint64_t last_ns = __atomic_load_n(&stat->limited_ns[1], __ATOMIC_RELAXED);
	if (last_ns && now - last_ns < QUEUE_PAUSE_NS)
		return; // not checked: whether a thread has waited that long
	uint64_t oldest = recorder_oldest_wait(ring, object, &waiters);
	if (!oldest || (oldest > now - threshold_ns && waiters < QUEUE))
		return;
	if (!may_record_release(ring, stat, waiters >= QUEUE, now))
		return;
	recorder_record(ring, thread,
			&(struct recorder_event){
				.type = STALL_RECORD_WAKER,
				.key = key,
				.operation = call,
				.start_ns = now,
				.now_ns = now,
				.value = now - oldest,
				.size = waiters,
				.place = place,
			});
}

void recorder_release(uint64_t object, enum stall_ring_call call,
		      const struct recorder_place *place)
{
	struct recorder_thread *thread = recorder_enter();
	struct recorder_ring *ring = thread ? recorder_ring() : NULL;

	if (ring && has_or_takes_slot(ring, thread))
		record_release(ring, thread, object, call, place);
	if (thread)
		recorder_leave(thread);
}

/* Threads begin and end, and so does the process. */

// In the thread that loads the library: the first one, which has its stack to itself.
__attribute__((constructor)) static void first_thread_begins(void)
{
	if (raw_call0(SYS_gettid) == raw_call0(SYS_getpid))
		recorder_stack_is_first(&self);
}

struct recorder_run recorder_thread_begins(struct recorder_start *start)
{
	return recorder_thread_start(&self, start);
}

// A child has one thread, on the stack that it had in its parent.
void recorder_forked(void)
{
	bool in_write = self.doing == RECORDER_WRITES;

	self = (struct recorder_thread){
		.generation = self.generation,
		.has_bounds = self.has_bounds,
		.stack_low = self.stack_low,
		.stack_end = self.stack_end,
	};
	recorder_state_forget();
	recorder_maps_forget();
	recorder_ring_forget(in_write);
}

void recorder_thread_ends(void)
{
	struct recorder_ring *ring = recorder_ring();

	self.ended = true;
	if (recorder_has_slot(ring, &self))
		recorder_slot_free(ring, &self);
	recorder_thread_end(&self, ring);
}

void recorder_exits(void)
{
	struct recorder_ring *ring = recorder_ring();

	if (!ring || !recorder_is_own_process())
		return;
	__atomic_store_n(&ring->header->state, STALL_RING_ENDED, __ATOMIC_RELEASE);
	if (!recorder_settings()->keep)
		raw_call1(SYS_unlink, ring->path);
}

// SPDX-License-Identifier: Apache-2.0
#include "sources/poller.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "ebpf/wait_kinds.h"

#define INTERVAL_NS UINT64_C(10000000) // between two passes, where that is cheap
#define LONGEST_NS UINT64_C(2000000000)
#define MAX_SHARE 5 // percent of a CPU, that all passes together may take
#define CHECK_NS UINT64_C(1000000000)
#define MAX_THREADS 65536
#define KEPT_RUNS 4096	 // descriptors
#define KEPT_CALLS 1024	 // the same
#define OTHER_FILES 1024 // that this program may need in addition
#define END_SECONDS 1	 // that the thread may take to end

static void free_slot(struct stall_poller *poller, struct stall_poll_thread *thread)
{
	if (thread->slot == STALL_POLL_NO_SLOT)
		return;
	struct stall_poll_slot *slot = &poller->slots[thread->slot];
	slot->seq++;
	slot->thread = NULL;
	poller->free_slots[poller->free_count++] = thread->slot;
	thread->slot = STALL_POLL_NO_SLOT;
}

// A thread that has ended, in the middle of a wait or not.
static void forget_thread(void *arg, struct stall_poll_thread *thread)
{
	struct stall_poller *poller = arg;

	free_slot(poller, thread);
	poller->thread_count--;
}

struct stall_error *stall_poller_add(struct stall_poller *poller, pid_t pid)
{
	size_t over = 0;

	stall_poller_lock(poller);
	bool has_room = stall_array_resize(&poller->processes, poller->process_count + 1);
	struct stall_error *err =
		has_room ? stall_poll_process_create(&poller->reader, pid,
						     MAX_THREADS - poller->thread_count, &over,
						     &poller->processes[poller->process_count])
			 : &stall_enomem;
	if (!err) {
		poller->lost[STALL_LOST_SLOTS_FULL] += over;
		poller->thread_count += poller->processes[poller->process_count++]->count;
		poller->next_ns = 0;
		pthread_cond_signal(&poller->changed);
	}
	stall_poller_unlock(poller);
	return err;
}

static void drop_threads(struct stall_poller *poller, struct stall_poll_process *process)
{
	for (size_t i = 0; i < process->count; i++)
		forget_thread(poller, process->threads[i]);
}

void stall_poller_remove(struct stall_poller *poller, pid_t pid)
{
	stall_poller_lock(poller);
	for (size_t i = 0; i < poller->process_count; i++) {
		struct stall_poll_process *process = poller->processes[i];
		if (process->target.pid != pid)
			continue;
		drop_threads(poller, process);
		stall_poll_process_destroy(&poller->reader, process);
		poller->processes[i] = poller->processes[--poller->process_count];
		break;
	}
	stall_poller_unlock(poller);
}

void stall_poller_forget_waits(struct stall_poller *poller, struct stall_poll_process *process)
{
	for (size_t i = 0; i < process->count; i++) {
		struct stall_poll_thread *thread = process->threads[i];
		free_slot(poller, thread);
		thread->asleep = thread->in_wait = false;
	}
	poller->reader.places = (struct stall_call_places){};
}

/* Waits begin and end. */

// The names of a thread, read when there is something to report of it.
static void set_names(const struct stall_poll_slot *slot, struct stall_wait_record *record)
{
	struct stall_thread thread = {};
	_cleanup_error_ struct stall_error *err =
		stall_proc_status_read(&slot->process->target, slot->thread->tid, &thread);

	record->ns_tid = err ? slot->thread->tid : thread.ns_tid;
	memcpy(record->comm, thread.comm, sizeof(record->comm));
}

static void set_registers(const struct stall_proc_syscall *call, struct stall_wait_record *record)
{
	static const uint8_t order[6] = {STALL_BPF_DI,	STALL_BPF_SI, STALL_BPF_DX,
					 STALL_BPF_R10, STALL_BPF_R8, STALL_BPF_R9};

	for (int i = 0; i < 6; i++)
		record->regs[order[i]] = call->args[i];
	record->regs[STALL_BPF_ORIG_AX] = call->number;
	record->regs[STALL_BPF_SP] = call->sp;
	record->regs[STALL_BPF_IP] = record->regs[STALL_BPF_CX] = call->pc;
}

// At the end of a wait its thread is in another call already.
struct stall_wait_record stall_poll_slot_record(const struct stall_poller *poller,
						const struct stall_poll_slot *slot, uint32_t type,
						uint64_t now_ns)
{
	struct stall_wait_record record = {
		.magic = STALL_BPF_MAGIC,
		.type = type,
		.tid = slot->thread->tid,
		.tgid = slot->process->target.pid,
		.operation = slot->call.operation,
		.key = slot->call.key,
		.start_ns = slot->start_ns,
		.now_ns = now_ns,
		.value = slot->call.value,
		.size = slot->call.size,
		.slot = slot - poller->slots,
		.seq = slot->seq,
		.flags = STALL_SLOT_CALL_REGS | (slot->reported ? STALL_SLOT_REPORTED : 0),
	};

	if (slot->thread->in_wait)
		set_registers(&slot->thread->call, &record);
	set_names(slot, &record);
	return record;
}

static void report_file(struct stall_poller *poller, const struct stall_poll_slot *slot)
{
	struct stall_wait_stat *stat = stall_poll_stats_at(poller->stats, slot->stat);

	if (stat->announced || !slot->call.path[0])
		return;
	if (poller->file_count == STALL_POLL_FILES) {
		poller->lost[STALL_LOST_FILES_FULL]++;
		return;
	}
	struct stall_wait_file *file = &poller->files[poller->file_count++];
	*file = (struct stall_wait_file){
		.magic = STALL_BPF_MAGIC,
		.type = STALL_RECORD_FILE,
		.tid = slot->thread->tid,
		.tgid = slot->process->target.pid,
		.key = stat->key,
		.fd = slot->call.fd,
		.mode = slot->call.mode,
	};
	memcpy(file->path, slot->call.path, sizeof(file->path));
	stat->announced = 1;
}

// Of a call that was seen twice.
static void begin_wait(struct stall_poller *poller, struct stall_poll_process *process,
		       struct stall_poll_thread *thread)
{
	struct stall_poll_call call;
	bool full;

	if (!stall_poll_call_describe(&process->target, poller->calls, poller->kinds, &thread->call,
				      &call)) {
		thread->unwanted = true;
		return;
	}
	if (!poller->free_count) {
		poller->lost[STALL_LOST_SLOTS_FULL]++;
		thread->unwanted = true;
		return;
	}
	uint32_t index = poller->free_slots[--poller->free_count];
	struct stall_poll_slot *slot = &poller->slots[index];
	*slot = (struct stall_poll_slot){
		.seq = slot->seq + 1,
		.stat = stall_poll_stats_take(poller->stats, &call.key, &full),
		.process = process,
		.thread = thread,
		.call = call,
		.start_ns = thread->since_ns,
		.found_ns = thread->seen_ns,
	};
	poller->lost[STALL_LOST_KEYS_FULL] += full;
	thread->slot = index;
	if (index >= poller->slot_high)
		poller->slot_high = index + 1;
	if (call.key.kind == STALL_WAIT_FUTEX)
		poller->has_words |= !stall_poll_stats_at(poller->stats, slot->stat)->announced;
	else if (!full)
		report_file(poller, slot);
}

// Its certain duration: from the first pass that saw it to the latest.
static uint64_t seen_ns(const struct stall_poll_slot *slot)
{
	return slot->thread->seen_ns - slot->start_ns;
}

bool stall_poll_slot_is_over(const struct stall_poller *poller, const struct stall_poll_slot *slot)
{
	return seen_ns(slot) >= poller->threshold_ns[slot->call.key.kind];
}

bool stall_poll_slot_is_due(const struct stall_poller *poller, const struct stall_poll_slot *slot)
{
	return slot->thread && !slot->reported && stall_poll_slot_is_over(poller, slot) &&
	       stall_poll_stats_at(poller->stats, slot->stat)->role != STALL_ROLE_COND;
}

bool stall_poll_slot_is(struct stall_poller *poller, size_t index, uint32_t seq)
{
	if (index >= poller->slot_high || !(seq & 1) || poller->slots[index].seq != seq)
		return false;
	const struct stall_poll_slot *slot = &poller->slots[index];
	return stall_poll_thread_is_same(&poller->reader, &slot->process->target,
					 slot->process->task, slot->thread);
}

static void end_wait(struct stall_poller *poller, struct stall_poll_thread *thread, uint64_t now_ns)
{
	if (thread->slot == STALL_POLL_NO_SLOT)
		return;
	const struct stall_poll_slot *slot = &poller->slots[thread->slot];
	struct stall_wait_stat *stat = stall_poll_stats_at(poller->stats, slot->stat);
	bool over = stall_poll_slot_is_over(poller, slot);

	stall_poll_stat_add(stat, now_ns - slot->start_ns,
			    stall_wait_has_bytes(slot->call.key.kind) ? slot->call.size : 0, over,
			    now_ns);
	if (over && stat->role != STALL_ROLE_COND) {
		if (poller->end_count < STALL_POLL_ENDS)
			poller->ends[poller->end_count++] =
				stall_poll_slot_record(poller, slot, STALL_RECORD_END, now_ns);
		else
			poller->lost[STALL_LOST_RATE]++;
	}
	free_slot(poller, thread);
}

/* Polling. */

static void poll_thread(struct stall_poller *poller, struct stall_poll_process *process,
			struct stall_poll_thread *thread)
{
	enum stall_poll_result result =
		stall_poll_thread_read(&poller->reader, &process->target, process->task, thread);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (thread->polled_ns && now_ns - thread->polled_ns > poller->longest_ns)
		poller->longest_ns = now_ns - thread->polled_ns;
	thread->polled_ns = now_ns;
	switch (result) {
	case STALL_POLL_SAME:
		thread->seen_ns = now_ns;
		if (thread->in_wait && !thread->unwanted && thread->slot == STALL_POLL_NO_SLOT)
			begin_wait(poller, process, thread);
		return;
	case STALL_POLL_OTHER:
		// `call` is its next call already.
		end_wait(poller, thread, now_ns);
		thread->since_ns = thread->seen_ns = now_ns;
		thread->unwanted = false;
		return;
	case STALL_POLL_REFUSED:
		process->refused++;
		end_wait(poller, thread, now_ns);
		return;
	case STALL_POLL_RUNS:
		end_wait(poller, thread, now_ns);
		return;
	case STALL_POLL_GONE:
		free_slot(poller, thread);
		return;
	}
}

static struct stall_error *list_threads(struct stall_poller *poller,
					struct stall_poll_process *process)
{
	size_t others = poller->thread_count - process->count, over = 0;
	struct stall_error *err =
		stall_poll_process_list(&poller->reader, process, MAX_THREADS - others,
					forget_thread, poller, &over);

	poller->thread_count = others + process->count;
	poller->lost[STALL_LOST_SLOTS_FULL] += over;
	if (!err || err->code == STALL_ERROR_NO_MEMORY)
		return err;
	stall_error_destroy(err); // it has ended, which others report
	return NULL;
}

static struct stall_error *poll_process(struct stall_poller *poller,
					struct stall_poll_process *process, uint64_t now_ns)
{
	process->refused = 0;
	for (size_t i = 0; i < process->count; i++)
		poll_thread(poller, process, process->threads[i]);
	poller->refused += process->refused;
	if (now_ns - process->checked_ns >= CHECK_NS)
		stall_poll_process_check(process, now_ns);
	return stall_poll_process_is_stale(process) ? list_threads(poller, process) : NULL;
}

// A word that is not identified yet may be one on which its thread waits for work: there is time
// to find out, also where the second pass comes late.
static bool is_long(const struct stall_poller *poller, const struct stall_poll_slot *slot)
{
	const enum stall_wait_kind kind = slot->call.key.kind;

	if (!slot->thread)
		return false;
	const enum stall_wait_role role = stall_poll_stats_at(poller->stats, slot->stat)->role;
	if (stall_watch_kind_is_idle(stall_watch_kind_of(kind, role)))
		return false;
	if (kind == STALL_WAIT_FUTEX && role == STALL_ROLE_UNKNOWN)
		return stall_poll_slot_is_over(poller, slot) &&
		       stall_resting_is_long(slot->thread->seen_ns - slot->found_ns,
					     poller->threshold_ns[kind]);
	return stall_resting_is_long(seen_ns(slot), poller->threshold_ns[kind]);
}

static void rest_or_not(struct stall_poller *poller, uint64_t now_ns, uint64_t cost_ns)
{
	struct stall_resting *resting = &poller->resting;

	stall_resting_passed(resting, poller->thread_count, cost_ns);
	for (size_t i = 0; i < poller->slot_high; i++) {
		if (is_long(poller, &poller->slots[i])) {
			stall_resting_saw_long_wait(resting, now_ns);
			break;
		}
	}
	bool wanted = stall_resting_wants_armed(resting, now_ns);
	if (wanted && !resting->armed)
		stall_resting_armed(resting, now_ns);
	else if (!wanted && resting->armed)
		stall_resting_disarmed(resting);
}

static uint64_t choose_interval(const struct stall_poller *poller)
{
	if (poller->fixed_ns)
		return poller->fixed_ns;
	if (poller->rests && !poller->resting.armed)
		return stall_resting_interval_ns(&poller->resting);
	uint64_t interval_ns = poller->cost_ns * 100 / MAX_SHARE;
	if (interval_ns < INTERVAL_NS)
		return INTERVAL_NS;
	return interval_ns > LONGEST_NS ? LONGEST_NS : interval_ns;
}

static void plan(struct stall_poller *poller, uint64_t started_ns, uint64_t cost_ns)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	poller->cost_ns = poller->cost_ns ? (3 * poller->cost_ns + cost_ns) / 4 : cost_ns;
	if (poller->rests)
		rest_or_not(poller, now_ns, cost_ns);
	const uint64_t interval_ns = choose_interval(poller);
	poller->interval_ns = interval_ns;
	poller->next_ns = started_ns + interval_ns;
	if (poller->next_ns < now_ns + cost_ns) // let others run
		poller->next_ns = now_ns + cost_ns;
}

static bool has_new_tasks(const struct stall_poller *poller)
{
	if (poller->end_count || poller->file_count || poller->has_words || poller->no_memory)
		return true;
	for (size_t i = 0; i < poller->process_count; i++)
		if (poller->processes[i]->replaced)
			return true;
	for (size_t i = 0; i < poller->slot_high; i++)
		if (stall_poll_slot_is_due(poller, &poller->slots[i]))
			return true;
	return false;
}

void stall_poller_pass(struct stall_poller *poller)
{
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t cpu_ns = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	struct stall_error *err = NULL;

	poller->refused = 0;
	for (size_t i = 0; !err && i < poller->process_count; i++)
		err = poll_process(poller, poller->processes[i], started_ns);
	poller->no_memory |= err != NULL; // no other error comes here
	stall_error_destroy(err);
	if (has_new_tasks(poller))
		eventfd_write(poller->event, 1);
	plan(poller, started_ns, stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns);
}

void stall_poller_set_threshold(struct stall_poller *poller, enum stall_wait_kind kind, uint64_t ns)
{
	stall_poller_lock(poller);
	poller->threshold_ns[kind] = ns;
	stall_resting_set_threshold(&poller->resting,
				    stall_resting_shortest(poller->threshold_ns, poller->kinds));
	const uint64_t next_ns = stall_clock_ns(CLOCK_MONOTONIC) + choose_interval(poller);
	if (next_ns < poller->next_ns) {
		poller->next_ns = next_ns;
		pthread_cond_signal(&poller->changed);
	}
	stall_poller_unlock(poller);
}

void stall_poller_poll_now(struct stall_poller *poller)
{
	stall_poller_lock(poller);
	stall_poller_pass(poller);
	stall_poller_unlock(poller);
}

/* The thread. */

static void *poll_again(void *arg)
{
	struct stall_poller *poller = arg;

	pthread_setname_np(pthread_self(), "poller");
	stall_poller_lock(poller);
	while (!poller->over) {
		uint64_t next_ns = poller->next_ns;
		const struct timespec until = {
			.tv_sec = (time_t)(next_ns / 1000000000),
			.tv_nsec = (long)(next_ns % 1000000000),
		};

		if (stall_clock_ns(CLOCK_MONOTONIC) >= next_ns)
			stall_poller_pass(poller);
		else
			pthread_cond_timedwait(&poller->changed, &poller->lock, &until);
	}
	stall_poller_unlock(poller);
	return NULL;
}

// Signals are for the thread that waits for them.
static struct stall_error *start(struct stall_poller *poller)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int errnum = pthread_create(&poller->thread, NULL, poll_again, poller);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (errnum)
		return stall_error_os(errnum, "cannot start the thread that polls");
	poller->started = true;
	return NULL;
}

// False: it is stuck in a read of a process whose memory map is locked.
static bool stop(struct stall_poller *poller)
{
	struct timespec until;

	if (!poller->started)
		return true;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += END_SECONDS;
	if (pthread_mutex_timedlock(&poller->lock, &until))
		return false;
	poller->over = true;
	pthread_cond_signal(&poller->changed);
	stall_poller_unlock(poller);
	return pthread_timedjoin_np(poller->thread, NULL, &until) == 0;
}

void stall_poller_destroy(struct stall_poller *poller)
{
	if (!poller || !stop(poller)) // it ends with this program
		return;
	while (poller->process_count)
		stall_poller_remove(poller, poller->processes[0]->target.pid);
	free(poller->processes);
	stall_poll_stats_destroy(poller->stats);
	free(poller->slots);
	free(poller->free_slots);
	free(poller->ends);
	free(poller->files);
	if (poller->event >= 0)
		close(poller->event);
	pthread_cond_destroy(&poller->changed);
	pthread_mutex_destroy(&poller->lock);
	free(poller);
}

/* What the kernel has. */

// The number is 0 everywhere in kernels without CONFIG_SCHED_INFO; this program has run.
static bool has_schedstat(void)
{
	_cleanup_fclose_ FILE *file = fopen("/proc/thread-self/schedstat", "re");
	char text[128] = "";
	uint64_t runs = 0;

	return file && fgets(text, sizeof(text), file) && stall_poll_parse_runs(text, &runs) &&
	       runs;
}

// At most half of the limit: processes and captures need descriptors, too.
static size_t kept(size_t wanted)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < OTHER_FILES)
		return 0;
	size_t room = (limit.rlim_cur - OTHER_FILES) / 4;
	return room < wanted ? room : wanted;
}

static void init_lock(struct stall_poller *poller)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&poller->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_mutex_init(&poller->lock, NULL);
}

static struct stall_error *init(struct stall_poller *poller)
{
	poller->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (poller->event < 0)
		return stall_error_os(errno, "eventfd");
	struct stall_error *err = stall_poll_stats_create(&poller->stats);
	if (err)
		return err;
	poller->slots = calloc(STALL_POLL_SLOTS, sizeof(*poller->slots));
	poller->free_slots = calloc(STALL_POLL_SLOTS, sizeof(*poller->free_slots));
	poller->ends = calloc(STALL_POLL_ENDS, sizeof(*poller->ends));
	poller->files = calloc(STALL_POLL_FILES, sizeof(*poller->files));
	if (!poller->slots || !poller->free_slots || !poller->ends || !poller->files)
		return &stall_enomem;
	for (size_t i = STALL_POLL_SLOTS; i > 0; i--)
		poller->free_slots[poller->free_count++] = i - 1;
	stall_wait_calls_set(poller->kinds, poller->calls);
	poller->reader = (struct stall_poll_reader){
		.calls = poller->calls,
		.by_status = !has_schedstat(),
		.runs_left = kept(KEPT_RUNS),
		.calls_left = kept(KEPT_CALLS),
	};
	return start(poller);
}

struct stall_error *stall_poller_create(const struct stall_wait_source_options *options,
					struct stall_poller **ret)
{
	struct stall_poller *poller = calloc(1, sizeof(*poller));

	if (!poller)
		return &stall_enomem;
	init_lock(poller);
	poller->event = -1;
	poller->kinds = options->kinds;
	poller->fixed_ns = options->poll_interval_ns;
	poller->interval_ns = poller->fixed_ns ? poller->fixed_ns : INTERVAL_NS;
	memcpy(poller->threshold_ns, options->threshold_ns, sizeof(poller->threshold_ns));
	// An interval that was requested is kept.
	poller->rests = options->at_rest && !poller->fixed_ns;
	stall_resting_init(&poller->resting, STALL_RESTING_PERCENT_SAMPLED,
			   stall_resting_shortest(poller->threshold_ns, poller->kinds));
	struct stall_error *err = init(poller);
	if (err) {
		stall_poller_destroy(poller);
		return err;
	}
	*ret = poller;
	return NULL;
}

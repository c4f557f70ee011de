// SPDX-License-Identifier: Apache-2.0
// Waits as /proc shows them: the system call of each thread, looked at again and again. For kernels
// that take no wait programs. What is seen at two looks is a wait; what is shorter is not seen.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cleanup.h"
#include "clock.h"
#include "poll_calls.h"
#include "poll_process.h"
#include "poll_stats.h"
#include "wait_copies.h"
#include "wait_process.h"
#include "wait_roles.h"
#include "wait_source.h"
#include "wait_unwind.h"

#define INTERVAL_NS UINT64_C(10000000) // between two looks, where that is cheap
#define LONGEST_NS UINT64_C(2000000000)
#define MAX_SHARE 5 // percent of a CPU, that all looks together may take
#define CHECK_NS UINT64_C(1000000000)
#define MAX_SLOTS 16384
#define MAX_THREADS 65536
#define MAX_ENDS 4096	 // between two calls of consume()
#define MAX_FILES 1024	 // the same
#define MAX_TOLD 256	 // waits in flight that are handed on at once
#define MAX_ASKED 16	 // words that are to be found out, at once
#define ASK_STACK 16384	 // bytes of a stack that tell what its thread waits for
#define KEPT_RUNS 4096	 // descriptors
#define KEPT_CALLS 1024	 // the same
#define OTHER_FILES 1024 // that this program may need beside them

struct slot {
	uint32_t seq; // odd while its thread waits
	uint32_t stat;
	bool reported;
	struct stall_poll_process *process;
	struct stall_poll_thread *thread; // NULL: free
	struct stall_poll_call call;
	uint64_t start_ns;
};

struct source {
	struct stall_wait_source_options options;
	char *why_not_bpf; // NULL: polling was asked for by name
	struct stall_call calls[STALL_CALLS];
	struct stall_poll_reader reader;
	struct stall_poll_process **processes;
	size_t process_count, thread_count;
	struct stall_poll_stats *stats;
	struct slot *slots;
	size_t slot_high;
	uint32_t *free_slots;
	size_t free_count;
	struct stall_wait_record *ends; // to be handed on
	size_t end_count;
	struct stall_wait_file *files; // the same
	size_t file_count;
	bool more; // waits in flight are due that were not handed on yet
	uint64_t lost[STALL_LOST_CAUSES];
	uint64_t next_ns;
	uint64_t interval_ns; // as it is now
	uint64_t cost_ns;     // of one look at all threads, CPU time, smoothed
	uint64_t longest_ns;  // between two looks at a thread, since sampling() was called
	char why_bpf[512], why_refused[160];
	uint8_t *stack;
	size_t refused;
};

/* Processes. */

static void free_slot(struct source *source, struct stall_poll_thread *thread)
{
	if (thread->slot == STALL_POLL_NO_SLOT)
		return;
	struct slot *slot = &source->slots[thread->slot];
	slot->seq++;
	slot->thread = NULL;
	source->free_slots[source->free_count++] = thread->slot;
	thread->slot = STALL_POLL_NO_SLOT;
}

// A thread that has ended, in the middle of a wait or not.
static void forget_thread(void *arg, struct stall_poll_thread *thread)
{
	struct source *source = arg;

	free_slot(source, thread);
	source->thread_count--;
}

// Where no source works, both reasons are told.
static struct stall_error *with_reason(const struct source *source, struct stall_error *err)
{
	if (!source->why_not_bpf || err->code != STALL_ERROR_PERMISSION)
		return err;
	_cleanup_error_ struct stall_error *refused = err;
	return stall_error_create(STALL_ERROR_PERMISSION, "%s; polling: %s", source->why_not_bpf,
				  refused->message);
}

static struct stall_error *add(void *state, pid_t pid)
{
	struct source *source = state;
	size_t over = 0;
	struct stall_poll_process **grown =
		reallocarray(source->processes, source->process_count + 1,
			     sizeof(struct stall_poll_process *));

	if (!grown)
		return &stall_enomem;
	source->processes = grown;
	struct stall_error *err =
		stall_poll_process_create(&source->reader, pid, MAX_THREADS - source->thread_count,
					  &over, &source->processes[source->process_count]);
	if (err)
		return with_reason(source, err);
	source->lost[STALL_LOST_SLOTS_FULL] += over;
	source->thread_count += source->processes[source->process_count++]->count;
	source->next_ns = 0;
	return NULL;
}

static void drop_threads(struct source *source, struct stall_poll_process *process)
{
	for (size_t i = 0; i < process->count; i++)
		forget_thread(source, process->threads[i]);
}

static void remove_process(void *state, pid_t pid)
{
	struct source *source = state;

	for (size_t i = 0; i < source->process_count; i++) {
		struct stall_poll_process *process = source->processes[i];
		if (process->target.pid != pid)
			continue;
		drop_threads(source, process);
		stall_poll_process_destroy(&source->reader, process);
		source->processes[i] = source->processes[--source->process_count];
		return;
	}
}

static struct stall_error *snapshot(void *state, struct stall_arena *arena, pid_t pid,
				    struct stall_snapshot *previous, struct stall_snapshot **ret)
{
	return stall_snapshot_create(arena, &pid, 1, previous, ret);
}

static struct stall_error *probe_server(void *state, struct stall_worker *worker,
					const struct stall_snapshot *snapshot)
{
	return NULL;
}

static void destroy(void *state)
{
	struct source *source = state;

	while (source->process_count)
		remove_process(source, source->processes[0]->target.pid);
	free(source->processes);
	stall_poll_stats_destroy(source->stats);
	free(source->slots);
	free(source->free_slots);
	free(source->ends);
	free(source->files);
	free(source->stack);
	free(source->why_not_bpf);
	free(source);
}

static struct stall_error *set_threshold(void *state, enum stall_wait_kind kind, uint64_t ns)
{
	struct source *source = state;

	source->options.threshold_ns[kind] = ns;
	return NULL;
}

static uint64_t threshold(void *state, pid_t pid, enum stall_wait_kind kind)
{
	const struct source *source = state;

	return source->options.threshold_ns[kind];
}

/* Waits begin and end. */

// The names of a thread, read when there is something to tell of it.
static void set_names(const struct slot *slot, struct stall_wait_record *record)
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

static struct stall_wait_record make_record(const struct source *source, const struct slot *slot,
					    uint32_t type, uint64_t now_ns)
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
		.slot = slot - source->slots,
		.seq = slot->seq,
		.flags = slot->reported ? STALL_SLOT_REPORTED : 0,
	};

	set_names(slot, &record);
	return record;
}

// Of one that goes on: its thread is still in the call.
static struct stall_wait_record make_record_now(const struct source *source,
						const struct slot *slot, uint32_t type,
						uint64_t now_ns)
{
	struct stall_wait_record record = make_record(source, slot, type, now_ns);

	set_registers(&slot->thread->call, &record);
	record.flags |= STALL_SLOT_CALL_REGS;
	return record;
}

static void tell_file(struct source *source, const struct slot *slot)
{
	struct stall_wait_stat *stat = stall_poll_stats_at(source->stats, slot->stat);

	if (stat->told || !slot->call.path[0])
		return;
	if (source->file_count == MAX_FILES) {
		source->lost[STALL_LOST_FILES_FULL]++;
		return;
	}
	struct stall_wait_file *file = &source->files[source->file_count++];
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
	stat->told = 1;
}

// Of a call that was seen twice.
static void begin_wait(struct source *source, struct stall_poll_process *process,
		       struct stall_poll_thread *thread)
{
	struct stall_poll_call call;
	bool full;

	if (!stall_poll_call_describe(&process->target, &process->mounts, source->calls,
				      source->options.kinds, &thread->call, &call)) {
		thread->unwanted = true;
		return;
	}
	if (!source->free_count) {
		source->lost[STALL_LOST_SLOTS_FULL]++;
		thread->unwanted = true;
		return;
	}
	uint32_t index = source->free_slots[--source->free_count];
	struct slot *slot = &source->slots[index];
	*slot = (struct slot){
		.seq = slot->seq + 1,
		.stat = stall_poll_stats_take(source->stats, &call.key, &full),
		.process = process,
		.thread = thread,
		.call = call,
		.start_ns = thread->since_ns,
	};
	source->lost[STALL_LOST_KEYS_FULL] += full;
	thread->slot = index;
	if (index >= source->slot_high)
		source->slot_high = index + 1;
	if (call.key.kind != STALL_WAIT_FUTEX && !full)
		tell_file(source, slot);
}

// What it has lasted for certain: from the first look that it was seen at to the latest.
static uint64_t seen_ns(const struct slot *slot)
{
	return slot->thread->seen_ns - slot->start_ns;
}

static bool is_over(const struct source *source, const struct slot *slot)
{
	return seen_ns(slot) >= source->options.threshold_ns[slot->call.key.kind];
}

static void end_wait(struct source *source, struct stall_poll_thread *thread, uint64_t now_ns)
{
	if (thread->slot == STALL_POLL_NO_SLOT)
		return;
	const struct slot *slot = &source->slots[thread->slot];
	struct stall_wait_stat *stat = stall_poll_stats_at(source->stats, slot->stat);
	bool over = is_over(source, slot);

	stall_poll_stat_add(stat, now_ns - slot->start_ns,
			    slot->call.key.kind >= STALL_WAIT_EXTEND ? slot->call.size : 0, over,
			    now_ns);
	if (over && stat->role != STALL_ROLE_COND) {
		if (source->end_count < MAX_ENDS)
			source->ends[source->end_count++] =
				make_record(source, slot, STALL_RECORD_END, now_ns);
		else
			source->lost[STALL_LOST_RATE]++;
	}
	free_slot(source, thread);
}

/* Looking. */

static void look_at(struct source *source, struct stall_poll_process *process,
		    struct stall_poll_thread *thread)
{
	enum stall_poll_look look =
		stall_poll_thread_look(&source->reader, &process->target, process->task, thread);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (thread->looked_ns && now_ns - thread->looked_ns > source->longest_ns)
		source->longest_ns = now_ns - thread->looked_ns;
	thread->looked_ns = now_ns;
	switch (look) {
	case STALL_POLL_SAME:
		thread->seen_ns = now_ns;
		if (thread->in_wait && !thread->unwanted && thread->slot == STALL_POLL_NO_SLOT)
			begin_wait(source, process, thread);
		return;
	case STALL_POLL_OTHER:
		// It is in the next one already: `call` is that.
		end_wait(source, thread, now_ns);
		thread->since_ns = thread->seen_ns = now_ns;
		thread->unwanted = false;
		return;
	case STALL_POLL_REFUSED:
		process->refused++;
		end_wait(source, thread, now_ns);
		return;
	case STALL_POLL_RUNS:
		end_wait(source, thread, now_ns);
		return;
	case STALL_POLL_GONE:
		free_slot(source, thread);
		return;
	}
}

static struct stall_error *list_threads(struct source *source, struct stall_poll_process *process)
{
	size_t others = source->thread_count - process->count, over = 0;
	struct stall_error *err =
		stall_poll_process_list(&source->reader, process, MAX_THREADS - others,
					forget_thread, source, &over);

	source->thread_count = others + process->count;
	source->lost[STALL_LOST_SLOTS_FULL] += over;
	if (!err || err->code == STALL_ERROR_NO_MEMORY)
		return err;
	stall_error_destroy(err); // it has ended, which others tell
	return NULL;
}

static struct stall_error *look_at_process(struct source *source,
					   struct stall_poll_process *process, uint64_t now_ns)
{
	process->refused = 0;
	for (size_t i = 0; i < process->count; i++)
		look_at(source, process, process->threads[i]);
	source->refused += process->refused;
	if (now_ns - process->checked_ns >= CHECK_NS)
		stall_poll_process_check(process, now_ns);
	return stall_poll_process_is_stale(process) ? list_threads(source, process) : NULL;
}

static void plan(struct source *source, uint64_t started_ns, uint64_t cost_ns)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t wanted_ns = source->options.poll_interval_ns;

	source->cost_ns = source->cost_ns ? (3 * source->cost_ns + cost_ns) / 4 : cost_ns;
	if (!wanted_ns) {
		wanted_ns = source->cost_ns * 100 / MAX_SHARE;
		if (wanted_ns < INTERVAL_NS)
			wanted_ns = INTERVAL_NS;
		if (wanted_ns > LONGEST_NS)
			wanted_ns = LONGEST_NS;
	}
	source->interval_ns = wanted_ns;
	source->next_ns = started_ns + wanted_ns;
	if (source->next_ns < now_ns + cost_ns) // others have their turn
		source->next_ns = now_ns + cost_ns;
}

static struct stall_error *look_at_all(struct source *source)
{
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t cpu_ns = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	struct stall_error *err = NULL;

	source->refused = 0;
	for (size_t i = 0; !err && i < source->process_count; i++)
		err = look_at_process(source, source->processes[i], started_ns);
	plan(source, started_ns, stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns);
	return err;
}

static int fd(void *state)
{
	return -1;
}

static int timeout_ms(void *state)
{
	const struct source *source = state;
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (source->more || now_ns >= source->next_ns)
		return 0;
	return (int)((source->next_ns - now_ns + 999999) / 1000000);
}

static const char *in_flight_by(void *state)
{
	return "poll";
}

static struct stall_error *look(void *state, uint64_t now_ns, bool *ret_changed)
{
	return NULL; // consume() does
}

/* Handing on. */

static bool is_due(const struct source *source, const struct slot *slot)
{
	return slot->thread && !slot->reported && is_over(source, slot) &&
	       stall_poll_stats_at(source->stats, slot->stat)->role != STALL_ROLE_COND;
}

static void tell_in_flight(struct source *source, const struct stall_wait_handler *handler)
{
	size_t told = 0;

	source->more = false;
	for (size_t i = 0; i < source->slot_high && !source->more; i++) {
		struct slot *slot = &source->slots[i];

		if (!is_due(source, slot))
			continue;
		if (told++ == MAX_TOLD) {
			source->more = true;
			continue;
		}
		slot->reported = true;
		const struct stall_wait_record record =
			make_record_now(source, slot, STALL_RECORD_IN_FLIGHT,
					slot->thread->seen_ns);
		handler->wait(handler->arg, &record, NULL);
	}
	if (handler->alarms)
		handler->alarms(handler->arg);
}

static bool slot_is(void *state, size_t index, uint32_t seq)
{
	struct source *source = state;

	if (index >= source->slot_high || !(seq & 1) || source->slots[index].seq != seq)
		return false;
	const struct slot *slot = &source->slots[index];
	return stall_poll_thread_is_same(&source->reader, &slot->process->target,
					 slot->process->task, slot->thread);
}

// What a word is, which may never be waited for as long as the threshold: the stack tells. False: the
// wait was over before that could be copied.
static bool ask(struct source *source, struct slot *slot, const struct stall_wait_handler *handler)
{
	struct stall_wait_record record =
		make_record_now(source, slot, STALL_RECORD_END, slot->start_ns);

	record.stack_address = slot->thread->call.sp;
	record.stack_size = stall_target_read(&slot->process->target, record.stack_address,
					      source->stack, ASK_STACK);
	record.flags |= STALL_SLOT_FIRST | STALL_SLOT_GOES_ON;
	if (!record.stack_size || !slot_is(source, record.slot, record.seq))
		return false;
	handler->wait(handler->arg, &record, source->stack);
	return true;
}

static void ask_for_words(struct source *source, const struct stall_wait_handler *handler)
{
	int asked = 0;

	for (size_t i = 0; i < source->slot_high && asked < MAX_ASKED; i++) {
		struct slot *slot = &source->slots[i];
		struct stall_wait_stat *stat =
			slot->thread ? stall_poll_stats_at(source->stats, slot->stat) : NULL;

		// A wait that was told in flight has told that too.
		if (!stat || stat->told || !stat->key.tgid || slot->reported ||
		    stat->key.kind != STALL_WAIT_FUTEX || stat->role != STALL_ROLE_UNKNOWN)
			continue;
		asked++;
		stat->told = ask(source, slot, handler);
	}
}

static void tell_rest(struct source *source, const struct stall_wait_handler *handler)
{
	for (size_t i = 0; i < source->end_count; i++)
		handler->wait(handler->arg, &source->ends[i], NULL);
	source->end_count = 0;
	ask_for_words(source, handler);
}

// The process executes another program: who is told takes a snapshot of it.
static void tell_replaced(struct source *source, struct stall_poll_process *process,
			  const struct stall_wait_handler *handler)
{
	const struct stall_wait_record record = {
		.magic = STALL_BPF_MAGIC,
		.type = STALL_RECORD_PROCESS,
		.tgid = process->target.pid,
		.result = STALL_PROCESS_EXECED,
	};

	process->replaced = false;
	for (size_t i = 0; i < process->count; i++) {
		free_slot(source, process->threads[i]);
		process->threads[i]->asleep = process->threads[i]->in_wait = false;
	}
	handler->wait(handler->arg, &record, NULL);
}

// What goes on now comes before what is over.
static struct stall_error *consume(void *state, const struct stall_wait_handler *handler,
				   size_t max)
{
	struct source *source = state;
	struct stall_error *err = NULL;

	if (stall_clock_ns(CLOCK_MONOTONIC) >= source->next_ns)
		err = look_at_all(source);
	else if (!source->more)
		return NULL;
	if (err)
		return err;
	for (size_t i = 0; i < source->process_count; i++)
		if (source->processes[i]->replaced)
			tell_replaced(source, source->processes[i], handler);
	for (size_t i = 0; i < source->file_count; i++)
		handler->file(handler->arg, &source->files[i]);
	source->file_count = 0;
	tell_in_flight(source, handler);
	tell_rest(source, handler);
	return NULL;
}

/* Slots. */

static size_t slot_limit(void *state)
{
	return MAX_SLOTS;
}

static size_t slot_count(void *state)
{
	const struct source *source = state;

	return source->slot_high;
}

static bool read_slot(void *state, size_t index, struct stall_wait_now *ret)
{
	const struct source *source = state;
	const struct slot *slot = &source->slots[index];

	if (index >= source->slot_high || !slot->thread)
		return false;
	*ret = (struct stall_wait_now){
		.key = slot->call.key,
		.start_ns = slot->start_ns,
		.seq = slot->seq,
		.reported = slot->reported,
		.operation = slot->call.operation,
		.value = slot->call.value,
	};
	return true;
}

static struct stall_error *copy_stacks(void *state, struct stall_arena *arena,
				       const struct stall_wait_process *process,
				       struct stall_wait_item *const *items, size_t count)
{
	return stall_wait_copy_stacks(arena, process, items, count, slot_is, state);
}

static bool read_word(void *state, const struct stall_wait_process *process,
		      const struct stall_wait_key *key, struct stall_futex *ret)
{
	return stall_wait_read_word(process, key->id, ret);
}

/* Stats. */

static size_t stat_count(void *state)
{
	const struct source *source = state;

	return stall_poll_stats_count(source->stats);
}

static bool read_stat(void *state, size_t index, struct stall_wait_stat *ret)
{
	const struct source *source = state;
	const struct stall_wait_stat *stat = stall_poll_stats_at(source->stats, index);

	if (stat->used)
		*ret = *stat;
	return stat->used;
}

static uint64_t take_max(void *state, size_t index)
{
	struct source *source = state;
	struct stall_wait_stat *stat = stall_poll_stats_at(source->stats, index);
	uint64_t max_ns = stat->max_ns;

	stat->max_ns = 0;
	return max_ns;
}

static bool retire(void *state, size_t index, struct stall_wait_stat *ret)
{
	struct source *source = state;
	const struct stall_wait_stat *stat = stall_poll_stats_at(source->stats, index);

	if (!stat->used || !stat->key.tgid)
		return false;
	for (size_t i = 0; i < source->slot_high; i++)
		if (source->slots[i].thread && source->slots[i].stat == index)
			return false;
	*ret = *stat;
	stall_poll_stats_free(source->stats, index);
	return true;
}

static void set_role(void *state, const struct stall_wait_key *key, enum stall_wait_role role)
{
	struct source *source = state;
	struct stall_wait_stat *stat = stall_poll_stats_find(source->stats, key);

	if (stat)
		stat->role = role;
}

static bool find_file(void *state, const struct stall_wait_key *key, struct stall_wait_file *ret)
{
	return false; // records tell all
}

/* What is told of the polling itself. */

static void lost(void *state, uint64_t ret[STALL_LOST_CAUSES])
{
	const struct source *source = state;

	memcpy(ret, source->lost, sizeof(source->lost));
}

static bool sampling(void *state, struct stall_wait_sampling *ret)
{
	struct source *source = state;

	*ret = (struct stall_wait_sampling){
		.interval_ns = source->interval_ns,
		.longest_ns = source->longest_ns,
	};
	if (ret->longest_ns < ret->interval_ns)
		ret->longest_ns = ret->interval_ns;
	source->longest_ns = 0;
	return true;
}

static const char *why_not_bpf(struct source *source)
{
	snprintf(source->why_bpf, sizeof(source->why_bpf),
		 "%s: /proc is polled every %llu ms: sampled: waits that are not much longer are "
		 "not "
		 "counted, lengths are true to within that time, and who ends a wait is not seen",
		 source->why_not_bpf ? source->why_not_bpf : "polling was asked for by name",
		 (unsigned long long)(source->interval_ns + 500000) / 1000000);
	return source->why_bpf;
}

static const char *why_refused(struct source *source)
{
	if (!source->refused)
		return NULL;
	snprintf(source->why_refused, sizeof(source->why_refused),
		 "%zu threads cannot be read (needs their user, or CAP_SYS_PTRACE)",
		 source->refused);
	return source->why_refused;
}

static struct stall_error *probes(void *state, struct stall_wait_probe **ret, size_t *ret_count)
{
	static const struct stall_wait_probe uprobes = {
		"server functions", "uprobes",
		"polling has none: which row or metadata lock is waited for is not known"};
	struct source *source = state;
	struct stall_wait_probe *all = calloc(3, sizeof(*all));

	if (!all)
		return &stall_enomem;
	all[0] = (struct stall_wait_probe){"polling", "/proc/PID/task/*/syscall",
					   why_refused(source)};
	all[1] = (struct stall_wait_probe){"wait programs", "BPF", why_not_bpf(source)};
	all[2] = uprobes;
	*ret = all;
	*ret_count = 3;
	return NULL;
}

static struct stall_error *functions(void *state, struct stall_wait_number **ret, size_t *ret_count)
{
	*ret = NULL;
	*ret_count = 0;
	return NULL;
}

static const struct stall_wait_source_calls source_calls = {
	.name = "poll",
	.destroy = destroy,
	.snapshot = snapshot,
	.add = add,
	.remove = remove_process,
	.probe_server = probe_server,
	.set_threshold = set_threshold,
	.threshold = threshold,
	.fd = fd,
	.timeout_ms = timeout_ms,
	.in_flight_by = in_flight_by,
	.look = look,
	.consume = consume,
	.slot_limit = slot_limit,
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
	.sampling = sampling,
	.probes = probes,
	.functions = functions,
};

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

// Half of what is permitted at most: processes have descriptors too, and so do captures.
static size_t kept(size_t wanted)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < OTHER_FILES)
		return 0;
	size_t room = (limit.rlim_cur - OTHER_FILES) / 4;
	return room < wanted ? room : wanted;
}

static struct stall_error *init(struct source *source)
{
	struct stall_error *err = stall_poll_stats_create(&source->stats);

	if (err)
		return err;
	source->slots = calloc(MAX_SLOTS, sizeof(*source->slots));
	source->free_slots = calloc(MAX_SLOTS, sizeof(*source->free_slots));
	source->ends = calloc(MAX_ENDS, sizeof(*source->ends));
	source->files = calloc(MAX_FILES, sizeof(*source->files));
	source->stack = malloc(ASK_STACK);
	if (!source->slots || !source->free_slots || !source->ends || !source->files ||
	    !source->stack)
		return &stall_enomem;
	for (size_t i = MAX_SLOTS; i > 0; i--)
		source->free_slots[source->free_count++] = i - 1;
	stall_wait_calls_set(source->options.kinds, source->calls);
	source->reader = (struct stall_poll_reader){
		.calls = source->calls,
		.by_status = !has_schedstat(),
		.runs_left = kept(KEPT_RUNS),
		.calls_left = kept(KEPT_CALLS),
	};
	source->interval_ns =
		source->options.poll_interval_ns ? source->options.poll_interval_ns : INTERVAL_NS;
	return NULL;
}

struct stall_error *stall_wait_source_poll(const struct stall_wait_source_options *options,
					   const char *why_not_bpf, struct stall_wait_source *ret)
{
	struct source *source = calloc(1, sizeof(*source));

	if (!source)
		return &stall_enomem;
	source->options = *options;
	struct stall_error *err = init(source);
	if (!err && why_not_bpf) {
		source->why_not_bpf = strdup(why_not_bpf);
		err = source->why_not_bpf ? NULL : &stall_enomem;
	}
	if (err) {
		destroy(source);
		return err;
	}
	*ret = (struct stall_wait_source){.calls = &source_calls, .state = source};
	return NULL;
}

// SPDX-License-Identifier: Apache-2.0
// Stacks without stopping: a BPF iterator reads the registers of all threads, process_vm_readv their
// stacks, and the iterator again shows which threads did not run in between.
#include "snapshot/backend.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/privileges.h"
#include "ebpf/denylist.h"
#include "ebpf/threads_loader.h"
#include "snapshot/sample.h"
#include "snapshot/snapshot.h"
#include "snapshot/stack_copy.h"
#include "snapshot/thread_index.h"
#include "snapshot/thread_record.h"

// Threads that are read again together, halved from pass to pass: fewer make a shorter window, in
// which a busy thread is less likely to run, and more calls.
#define MAX_CHUNK 64
#define MIN_CHUNK 4
#define SAMPLE_US 2000	    // a thread on a CPU is interrupted within 20 us
#define LAST_SAMPLE_US 4000 // both CPUs can be busy with other threads

struct state {
	struct stall_bpf_threads *threads;
	struct stall_bpf_records records;
	// Of the last capture, by process and tid as in its snapshot, and those that ended, too.
	struct work *work;
	size_t work_count;
};

enum outcome {
	PENDING,
	SETTLED, // the copy is exact
	SAMPLED, // on a CPU, sampled there
	LOST,	 // ended
};

struct work {
	struct stall_bpf_thread before; // at the start of the window that is open now
	struct stall_stack_copy copy;
	enum outcome outcome;
	bool seen;   // in this run
	bool copied; // now, or in an earlier capture of the burst
	unsigned int on_cpu_runs;
	bool is_32bit;
};

struct capture {
	struct state *state;
	struct stall_thread_index index;
	struct stall_snapshot *snapshot;
	const struct stall_snapshot_options *options;
	struct work *work; // one for each thread that was found
	size_t found;
	struct stall_stack_copy **copies; // room for the arguments of stall_stacks_copy
	uint64_t deadline_ns;
	size_t arena_full, threads_32bit;
	bool sampling_refused;
};

// Loading takes tens of milliseconds, most of them for the kernel's types: what a probe loaded is
// kept for the open that usually follows.
static struct stall_bpf_threads *probed;

static struct stall_error *bpf_check(const struct stall_snapshot_options *options)
{
	struct stall_error *err = stall_denylist_check(STALL_DENY_TASK_STACK, options->force);

	if (!err)
		err = stall_yama_refuses_all();
	if (err || probed)
		return err;
	return stall_bpf_threads_create(&probed);
}

static void bpf_close(void *arg)
{
	struct state *state = arg;

	if (!state)
		return;
	stall_bpf_threads_destroy(state->threads);
	stall_bpf_records_deinit(&state->records);
	free(state->work);
	free(state);
}

static struct stall_error *bpf_open(const struct stall_snapshot_options *options, void **ret)
{
	struct state *state = calloc(1, sizeof(*state));

	(void)options;
	if (!state)
		return &stall_enomem;
	if (!probed) {
		struct stall_error *err = stall_bpf_threads_create(&probed);
		if (err) {
			bpf_close(state);
			return err;
		}
	}
	state->threads = no_cleanup_ptr(probed);
	*ret = state;
	return NULL;
}

static void fill_thread(struct capture *capture, size_t index,
			const struct stall_bpf_thread *record)
{
	struct work *work = &capture->work[index];

	stall_record_fill(record, stall_bpf_kernel_frames(record),
			  &capture->snapshot->threads[index]);
	work->before = *record;
	work->is_32bit = stall_record_is_32bit(record);
	work->on_cpu_runs = record->on_cpu ? work->on_cpu_runs + 1 : 0;
	// An older copy does not match these registers.
	capture->snapshot->threads[index].stack_size = 0;
}

static struct stall_error *run_limited(struct state *state, const struct stall_bpf_run *run,
				       size_t max_threads)
{
	struct stall_bpf_run with_limit = *run;

	with_limit.max_bytes = max_threads * (sizeof(struct stall_bpf_thread) +
					      STALL_BPF_KERNEL_FRAMES * sizeof(uint64_t));
	return stall_bpf_threads_run(state->threads, &with_limit, &state->records);
}

static struct stall_error *run(struct capture *capture, const struct stall_bpf_run *run)
{
	return run_limited(capture->state, run, capture->options->max_threads);
}

// The maps were read before the threads: both must be of one program.
static struct stall_error *check_image(const struct capture *capture, size_t index,
				       const struct stall_bpf_thread *record)
{
	const struct stall_process *process =
		&capture->snapshot->processes[capture->snapshot->threads[index].process];

	// A thread that is exiting has no memory any more; without ptrace access /proc shows none.
	if (!record->start_stack || !process->start_stack)
		return NULL;
	if (record->start_stack != process->start_stack ||
	    record->start_brk != process->start_brk ||
	    record->exec_id != capture->work[index].before.exec_id)
		return stall_process_changed_error(process);
	return NULL;
}

// Where the threads of the capture before are looked up: all three lists have the same order, those
// threads, their records, which include the threads that had ended by its end, and the new threads.
struct cursor {
	size_t thread, work;
};

// The record of the thread in the capture before; NULL where it was not in it. cursor->thread is its
// index then.
static const struct work *find_before(const struct capture *capture, struct cursor *cursor,
				      uint32_t process, pid_t tid)
{
	const struct stall_snapshot *before = capture->snapshot->before;
	const struct state *state = capture->state;

	if (!stall_snapshot_seek(before, &cursor->thread, process, tid))
		return NULL;
	while (cursor->work < state->work_count && state->work[cursor->work].before.tid != tid)
		cursor->work++;
	return cursor->work < state->work_count ? &state->work[cursor->work] : NULL;
}

// Takes over what the capture before has of a thread that did not run since. False: it did.
static bool take_over(struct capture *capture, size_t index, struct cursor *cursor,
		      const struct stall_bpf_thread *record)
{
	struct stall_thread *thread = &capture->snapshot->threads[index];
	struct work *work = &capture->work[index];
	const struct work *old = find_before(capture, cursor, thread->process, record->tid);

	if (!old || old->outcome != SETTLED || !old->copied ||
	    !stall_record_did_not_run(&old->before, record))
		return false;
	memcpy(thread, &capture->snapshot->before->threads[cursor->thread],
	       offsetof(struct stall_thread, kernel_frame_count));
	thread->state = stall_record_state(record); // it may have been woken
	thread->stack = NULL;
	thread->stack_size = 0;
	thread->passes = 0;
	thread->unchanged = true;
	thread->before = (uint32_t)cursor->thread;
	work->before = *record;
	work->outcome = SETTLED;
	work->copied = true;
	work->copy.truncated = old->copy.truncated;
	work->is_32bit = old->is_32bit;
	return true;
}

// The first pass: which threads there are.
static struct stall_error *find_threads(struct capture *capture)
{
	struct stall_snapshot *snapshot = capture->snapshot;
	_cleanup_free_ struct stall_found_thread *found = NULL;
	_cleanup_free_ size_t *dead = calloc(snapshot->process_count, sizeof(*dead));
	struct cursor cursor = {};
	struct stall_error *err;
	size_t count;

	if (!dead)
		return &stall_enomem;

	// Most threads of a later capture did not run: the stacks of the others are read with them.
	err = run(capture,
		  &(struct stall_bpf_run){.kernel_stacks = !snapshot->before &&
							   capture->options->kernel_stacks});
	if (!err)
		err = stall_thread_index_sort(&capture->index, &capture->state->records, &found,
					      &count, dead);
	if (!err && capture->state->records.cut)
		err = stall_snapshot_note(snapshot, "threads-limit",
					  "there are more than %zu threads: raise --max-threads",
					  capture->options->max_threads);
	if (err)
		return err;
	for (size_t i = 0; i < snapshot->process_count; i++)
		snapshot->processes[i].threads_lost += dead[i];
	for (; count > capture->options->max_threads; count--)
		snapshot->processes[found[count - 1].process].threads_lost++;
	snapshot->threads = calloc(count + 1, sizeof(*snapshot->threads));
	capture->work = calloc(count + 1, sizeof(*capture->work));
	capture->copies = calloc(count + 1, sizeof(*capture->copies));
	if (!snapshot->threads || !capture->work || !capture->copies)
		return &stall_enomem;
	snapshot->thread_count = capture->found = count;
	for (size_t i = 0; i < count; i++) {
		snapshot->threads[i].process = found[i].process;
		capture->work[i].copy.thread = &snapshot->threads[i];
		if (snapshot->before && take_over(capture, i, &cursor, found[i].record))
			continue;
		fill_thread(capture, i, found[i].record);
		err = check_image(capture, i, found[i].record);
		if (err)
			return err;
	}
	return NULL;
}

static struct stall_error *copy_stacks(struct capture *capture, const uint32_t *indexes,
				       size_t count)
{
	size_t chosen = 0, full;

	for (size_t i = 0; i < count; i++) {
		struct work *work = &capture->work[indexes[i]];

		// The saved registers of a thread on a CPU are those of its last entry into the
		// kernel: useless.
		if (work->outcome != PENDING || work->before.on_cpu)
			continue;
		capture->snapshot->threads[indexes[i]].passes++;
		capture->copies[chosen++] = &work->copy;
	}
	struct stall_error *err =
		stall_stacks_copy(capture->snapshot, capture->copies, chosen,
				  capture->options->max_stack + STALL_RED_ZONE, &full);
	if (!err)
		capture->arena_full += full;
	return err;
}

// Closes the windows: settles threads that did not run, and keeps the new records of the others.
static struct stall_error *compare_records(struct capture *capture)
{
	const struct stall_bpf_records *records = &capture->state->records;
	const struct stall_bpf_thread *record;

	for (size_t at = 0; (record = stall_bpf_records_next(records, &at));) {
		size_t index = stall_thread_index_find(&capture->index, record->tgid, record->tid);

		if (index == STALL_NO_THREAD || capture->work[index].outcome != PENDING)
			continue;
		struct work *work = &capture->work[index];
		struct stall_error *err = check_image(capture, index, record);
		if (err)
			return err;
		work->seen = true;
		if (stall_record_did_not_run(&work->before, record)) {
			work->outcome = SETTLED;
			continue;
		}
		if (stall_record_is_dead(record) && record->tid != record->tgid) {
			work->outcome = LOST;
			continue;
		}
		// A copy stays with the registers that it was made with.
		work->on_cpu_runs = record->on_cpu ? work->on_cpu_runs + 1 : 0;
	}
	return NULL;
}

// Threads that the run did not report have ended.
static void mark_lost(struct capture *capture, const uint32_t *indexes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct work *work = &capture->work[indexes[i]];

		if (work->outcome == PENDING && !work->seen)
			work->outcome = LOST;
		work->seen = false;
	}
}

// Opens new windows on threads that ran.
static void reopen(struct capture *capture)
{
	const struct stall_bpf_records *records = &capture->state->records;
	const struct stall_bpf_thread *record;

	for (size_t at = 0; (record = stall_bpf_records_next(records, &at));) {
		size_t index = stall_thread_index_find(&capture->index, record->tgid, record->tid);

		if (index != STALL_NO_THREAD && capture->work[index].outcome == PENDING) {
			capture->work[index].seen = true;
			fill_thread(capture, index, record);
		}
	}
}

// One window over a few threads: registers, copies, registers.
static struct stall_error *read_again(struct capture *capture, const uint32_t *indexes,
				      size_t count)
{
	pid_t tids[MAX_CHUNK];
	struct stall_bpf_run first = {.tids = tids, .tid_count = count};

	for (size_t i = 0; i < count; i++)
		tids[i] = capture->snapshot->threads[indexes[i]].tid;
	struct stall_bpf_run second = first;
	first.kernel_stacks = capture->options->kernel_stacks;
	struct stall_error *err = run(capture, &first);
	if (err)
		return err;
	reopen(capture);
	mark_lost(capture, indexes, count);
	err = copy_stacks(capture, indexes, count);
	if (!err)
		err = run(capture, &second);
	if (!err)
		err = compare_records(capture);
	if (!err)
		mark_lost(capture, indexes, count);
	return err;
}

static size_t list_pending(const struct capture *capture, uint32_t *ret)
{
	size_t count = 0;

	for (size_t i = 0; i < capture->snapshot->thread_count; i++) {
		if (capture->work[i].outcome == PENDING)
			ret[count++] = (uint32_t)i;
	}
	return count;
}

// Samples threads that were on a CPU in `runs` passes in a row.
static struct stall_error *sample_running(struct capture *capture, const uint32_t *indexes,
					  size_t count, unsigned int runs, unsigned int timeout_us)
{
	struct stall_sample samples[STALL_MAX_SAMPLED];
	uint32_t sampled[STALL_MAX_SAMPLED];
	size_t chosen = 0;

	for (size_t i = 0; i < count && chosen < STALL_MAX_SAMPLED; i++) {
		const struct work *work = &capture->work[indexes[i]];

		if (work->outcome != PENDING || work->on_cpu_runs < runs)
			continue;
		sampled[chosen] = indexes[i];
		samples[chosen++] = (struct stall_sample){
			.thread = &capture->snapshot->threads[indexes[i]],
		};
	}
	if (!chosen || capture->sampling_refused)
		return NULL;
	struct stall_error *err = stall_sample_threads(capture->snapshot, samples, chosen,
						       capture->options->max_stack, timeout_us);
	if (err) {
		capture->sampling_refused = true;
		struct stall_error *note_err =
			stall_snapshot_note(capture->snapshot, "running-unsampled", "%s",
					    err->message);
		stall_error_destroy(err);
		return note_err;
	}
	for (size_t i = 0; i < chosen; i++) {
		if (!samples[i].taken)
			continue;
		capture->work[sampled[i]].outcome = SAMPLED;
		samples[i].thread->state = 'R';
		samples[i].thread->on_cpu = true;
		samples[i].thread->in_syscall = false;
	}
	return NULL;
}

static struct stall_error *settle_rest(struct capture *capture, uint32_t *pending)
{
	size_t count = list_pending(capture, pending), chunk = MAX_CHUNK;
	struct stall_error *err = NULL;

	for (unsigned int pass = 1; count && pass < capture->options->passes; pass++) {
		if (stall_clock_ns(CLOCK_MONOTONIC) > capture->deadline_ns)
			return stall_snapshot_note(
				capture->snapshot, "deadline",
				"%zu threads kept running until the deadline of %u ms", count,
				capture->options->deadline_ms);
		for (size_t i = 0; !err && i < count; i += chunk)
			err = read_again(capture, pending + i,
					 count - i < chunk ? count - i : chunk);
		chunk = chunk > MIN_CHUNK ? chunk / 2 : MIN_CHUNK;
		if (!err)
			err = sample_running(capture, pending, count, 4, SAMPLE_US);
		if (err)
			return err;
		count = list_pending(capture, pending);
	}
	return sample_running(capture, pending, count, 1, LAST_SAMPLE_US);
}

// One window over all threads that are left; it begins with the run that found them, but in a later
// capture of a burst, where that run read no kernel stacks.
static struct stall_error *read_first(struct capture *capture, const uint32_t *pending,
				      size_t count)
{
	struct stall_error *err = NULL;

	if (capture->snapshot->before) {
		err = run(capture, &(struct stall_bpf_run){
					   .kernel_stacks = capture->options->kernel_stacks});
		if (err)
			return err;
		reopen(capture);
		mark_lost(capture, pending, count);
	}
	err = copy_stacks(capture, pending, count);
	if (!err)
		err = run(capture, &(struct stall_bpf_run){});
	if (!err)
		err = compare_records(capture);
	if (!err)
		mark_lost(capture, pending, count);
	return err;
}

static struct stall_error *read_threads(struct capture *capture)
{
	struct stall_snapshot *snapshot = capture->snapshot;
	_cleanup_free_ uint32_t *pending = NULL;
	struct stall_error *err = find_threads(capture);

	if (err)
		return err;
	pending = calloc(snapshot->thread_count + 1, sizeof(*pending));
	if (!pending)
		return &stall_enomem;
	size_t count = list_pending(capture, pending);
	err = stall_snapshot_read_futexes(snapshot);
	// A few threads cost less one by one than a run over all.
	if (!err && (!snapshot->before || count > MAX_CHUNK))
		err = read_first(capture, pending, count);
	if (!err)
		err = settle_rest(capture, pending);
	return err ? err : stall_snapshot_read_futexes(snapshot);
}

// `late`: its stack could not be read, but its registers are those of a thread that was off the
// CPU.
static void set_label(struct stall_thread *thread, const struct work *work, bool late)
{
	if (thread->unchanged) // its label is that of the capture before
		return;
	if (work->outcome == SAMPLED) {
		thread->label = STALL_RUNNING;
	} else if (work->outcome == SETTLED) {
		thread->label = work->copy.truncated ? STALL_TRUNCATED : STALL_VERIFIED;
	} else if (thread->stack_size || (late && !work->before.on_cpu)) {
		thread->label = STALL_RACED;
	} else {
		thread->label = STALL_RUNNING;
		thread->on_cpu = true;
		thread->regs.valid = 0;
		thread->in_syscall = false;
	}
}

// Sets labels and counts, and removes threads that have ended.
static void finish_threads(struct capture *capture)
{
	struct stall_snapshot *snapshot = capture->snapshot;
	uint32_t asked = UINT32_MAX; // threads of a process follow one another
	bool is_late = false;
	size_t kept = 0;

	for (size_t i = 0; i < snapshot->process_count; i++)
		snapshot->processes[i].thread_count = 0;
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		struct stall_process *process = &snapshot->processes[snapshot->threads[i].process];

		if (snapshot->threads[i].process != asked) {
			asked = snapshot->threads[i].process;
			is_late = stall_snapshot_is_late(snapshot, asked);
		}

		if (capture->work[i].outcome == LOST) {
			process->threads_lost++;
			continue;
		}
		// A thread that never was in user space has none.
		capture->work[i].copied |=
			snapshot->threads[i].stack_size || !snapshot->threads[i].regs.valid;
		set_label(&snapshot->threads[i], &capture->work[i], is_late);
		capture->threads_32bit += capture->work[i].is_32bit;
		process->thread_count++;
		if (kept != i)
			snapshot->threads[kept] = snapshot->threads[i];
		kept++;
	}
	snapshot->thread_count = kept;
}

static struct stall_error *note_losses(struct capture *capture)
{
	struct stall_snapshot *snapshot = capture->snapshot;
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < snapshot->process_count; i++) {
		const struct stall_process *process = &snapshot->processes[i];

		if (process->threads_lost)
			err = stall_snapshot_note(snapshot, "threads-lost",
						  "%zu threads of process %d ended during the "
						  "capture or are beyond the limit of %zu",
						  process->threads_lost, process->target.pid,
						  capture->options->max_threads);
	}
	if (!err && capture->threads_32bit)
		err = stall_snapshot_note(snapshot, "32-bit",
					  "%zu threads run 32-bit code, whose stacks are not read",
					  capture->threads_32bit);
	if (!err && capture->arena_full)
		err = stall_snapshot_note(
			snapshot, "arena-full",
			"no room for the stacks of %zu threads: lower --max-stack",
			capture->arena_full);
	return err;
}

static struct stall_error *choose_processes(struct state *state,
					    const struct stall_snapshot *snapshot)
{
	_cleanup_free_ pid_t *tgids = calloc(snapshot->process_count + 1, sizeof(*tgids));

	if (!tgids)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->process_count; i++)
		tgids[i] = snapshot->processes[i].target.pid;
	return stall_bpf_threads_set_targets(state->threads, tgids, snapshot->process_count);
}

static struct stall_error *bpf_capture(void *arg, struct stall_snapshot *snapshot,
				       const struct stall_snapshot_options *options)
{
	uint64_t start = stall_clock_ns(CLOCK_MONOTONIC);
	struct capture capture = {
		.state = arg,
		.snapshot = snapshot,
		.options = options,
		.deadline_ns = start + (uint64_t)options->deadline_ms * 1000000,
	};

	struct stall_error *err = choose_processes(capture.state, snapshot);
	if (!err)
		err = stall_thread_index_init(&capture.index, snapshot);
	if (!err) {
		start = stall_clock_ns(CLOCK_MONOTONIC);
		err = read_threads(&capture);
	}
	snapshot->snapshot_ns = stall_clock_ns(CLOCK_MONOTONIC) - start;
	if (!err) {
		finish_threads(&capture);
		err = stall_snapshot_drop_ended(snapshot);
	}
	if (!err)
		err = note_losses(&capture);
	stall_thread_index_deinit(&capture.index);
	free(capture.copies);
	free(capture.state->work);
	capture.state->work = capture.work;
	capture.state->work_count = err ? 0 : capture.found;
	return err;
}

// The records of the chosen threads before they were copied; both lists have the same order.
static void find_work(const struct state *state, const struct stall_snapshot *snapshot,
		      const uint32_t *threads, size_t count, const struct work **ret)
{
	size_t at = 0;

	for (size_t i = 0; i < count; i++) {
		const struct stall_thread *thread = &snapshot->threads[threads[i]];
		pid_t tgid = snapshot->processes[thread->process].target.pid;

		while (at < state->work_count && (state->work[at].before.tid != thread->tid ||
						  state->work[at].before.tgid != tgid))
			at++;
		ret[i] = at < state->work_count ? &state->work[at] : NULL;
	}
}

static void compare_runs(const struct state *state, const struct stall_thread_index *index,
			 const struct work *const *work, const uint32_t *threads, size_t count,
			 bool *ret)
{
	const struct stall_bpf_thread *record;

	for (size_t at = 0; (record = stall_bpf_records_next(&state->records, &at));) {
		size_t thread = stall_thread_index_find(index, record->tgid, record->tid);
		size_t low = 0, high = count;

		while (low < high) {
			size_t middle = low + (high - low) / 2;

			if (threads[middle] < thread)
				low = middle + 1;
			else
				high = middle;
		}
		if (low == count || threads[low] != thread || !work[low])
			continue;
		ret[low] = work[low]->outcome != SETTLED ||
			   !stall_record_did_not_run(&work[low]->before, record);
	}
}

// The iterator walks over all threads whatever is chosen: beyond this number of runs one run over
// all is cheaper.
#define MAX_CHOSEN_RUNS 4

static struct stall_error *bpf_find_runs(void *arg, const struct stall_snapshot *snapshot,
					 const uint32_t *threads, size_t count, bool *ret)
{
	struct state *state = arg;
	_cleanup_free_ const struct work **work = calloc(count + 1, sizeof(*work));
	_cleanup_free_ pid_t *tids = calloc(count + 1, sizeof(*tids));
	_cleanup_(stall_thread_index_deinit) struct stall_thread_index index = {};
	size_t chunk = STALL_BPF_MAX_CHOSEN;

	if (!work || !tids)
		return &stall_enomem;
	struct stall_error *err = stall_thread_index_init(&index, snapshot);
	find_work(state, snapshot, threads, count, work);
	for (size_t i = 0; i < count; i++) {
		tids[i] = snapshot->threads[threads[i]].tid;
		ret[i] = true; // a thread without a record has ended
	}
	bool all = count > MAX_CHOSEN_RUNS * chunk;
	for (size_t i = 0; !err && i < count; i += all ? count : chunk) {
		struct stall_bpf_run run = {
			.tids = all ? NULL : tids + i,
			.tid_count = count - i < chunk ? count - i : chunk,
		};

		// New threads may have begun since.
		err = run_limited(state, &run, 2 * snapshot->thread_count + 1);
		if (!err)
			compare_runs(state, &index, work, threads, count, ret);
	}
	return err;
}

const struct stall_backend stall_backend_bpf = {
	.name = "bpf",
	.feature = "bpf-iterator",
	.stops_threads = false,
	.follows = true,
	.check = bpf_check,
	.open = bpf_open,
	.capture = bpf_capture,
	.find_runs = bpf_find_runs,
	.close = bpf_close,
};

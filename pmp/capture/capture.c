// SPDX-License-Identifier: Apache-2.0
#include "capture/capture.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "capture/capture_stacks.h"
#include "capture/cmdline.h"
#include "capture/fields.h"
#include "capture/frame_names.h"
#include "capture/records.h"
#include "capture/syscall_names.h"

#define SCHEMA "stallscope.capture/1"
#define SCHEMA_WITH_SAME_NAMES "stallscope.capture/2"
// Written out in parts of this size, so that memory does not grow with the capture.
#define FLUSH_BYTES (1024 * 1024)

struct writer {
	const struct stall_capture *capture;
	struct stall_output *output;
	struct stall_json json;
	uint32_t **module_ids; // by process, by module: id of the record, or UINT32_MAX
	size_t module_count;
	uint32_t *lock_ids; // by lock: id of the record, or UINT32_MAX
	struct stall_frame_names names;
	size_t max_bytes; // of each table
	size_t written;	  // bytes, without those in `json`
	// How many are written of the user frames, of the kernel's, and of the stacks.
	size_t frames, kernel_frames, stacks;
};

// Of a table that begins at `start`.
static bool is_full(const struct writer *writer, size_t start)
{
	return writer->written + writer->json.size - start >= writer->max_bytes;
}

static struct stall_error *flush(struct writer *writer)
{
	if (writer->json.failed)
		return &stall_enomem;
	struct stall_error *err =
		stall_output_write(writer->output, writer->json.data, writer->json.size);
	writer->written += writer->json.size;
	writer->json.size = 0;
	return err;
}

static struct stall_error *end(struct writer *writer)
{
	stall_json_close(&writer->json, '}');
	stall_json_newline(&writer->json);
	if (writer->json.size >= FLUSH_BYTES || writer->json.failed)
		return flush(writer);
	return NULL;
}

static struct stall_error *write_head(struct writer *writer)
{
	const struct stall_snapshot *snapshot = writer->capture->snapshot;
	struct stall_json *json = &writer->json;

	stall_record_capture(&writer->json);
	stall_put_capture_schema(json, writer->names.same ? SCHEMA_WITH_SAME_NAMES : SCHEMA);
	stall_put_capture_tool(json);
	stall_json_open(json, '{');
	stall_put_tool_name(json, "stallscope-probe");
	stall_put_tool_version(json, STALL_VERSION);
	stall_json_close(json, '}');
	stall_time_write(json, snapshot->wall_ns);
	stall_host_write(json, writer->capture->host);
	stall_put_capture_backend(json, snapshot->backend);
	stall_put_capture_backend_reason(json, snapshot->backend_reason);
	stall_put_capture_snapshot_ns(json, snapshot->snapshot_ns);
	if (snapshot->before)
		stall_put_capture_moment(json, snapshot->moment);
	return end(writer);
}

static struct stall_error *write_process(struct writer *writer, uint32_t index)
{
	const struct stall_capture *capture = writer->capture;
	const struct stall_process *process = &capture->snapshot->processes[index];
	struct stall_json *json = &writer->json;
	struct stall_cmdline cmdline;

	struct stall_error *err = stall_cmdline_read(&process->target, &cmdline);
	if (err)
		return err;
	stall_record_process(&writer->json);
	stall_put_process_id(json, index);
	stall_put_process_pid(json, process->target.pid);
	stall_put_process_ppid(json, process->ppid);
	stall_put_process_start_time(json, process->target.start_time);
	stall_put_process_comm(json, process->comm, strnlen(process->comm, sizeof(process->comm)));
	stall_put_process_exe(json, process->exe);
	stall_put_process_exe_deleted(json, process->exe_deleted);
	stall_put_process_cmdline(json);
	stall_json_open(json, '[');
	for (size_t i = 0; i < cmdline.count; i++)
		stall_json_string(json, cmdline.arguments[i]);
	stall_json_close(json, ']');
	stall_put_process_strings(json);
	stall_json_open(json, '{');
	for (size_t i = 0; i < capture->string_count; i++) {
		const struct stall_capture_string *string = &capture->strings[i];
		if (string->process != index)
			continue;
		stall_json_string(json, string->name);
		stall_json_colon(json);
		stall_json_string(json, string->text);
	}
	stall_json_close(json, '}');
	stall_put_process_threads_lost(json, process->threads_lost);
	stall_cmdline_deinit(&cmdline);
	return end(writer);
}

static struct stall_error *write_module(struct writer *writer, uint32_t process, uint32_t index,
					const struct stall_module_info *info)
{
	const struct stall_module *module =
		&writer->capture->snapshot->processes[process].maps->modules[index];
	struct stall_json *json = &writer->json;

	if (writer->module_ids[process][index] != UINT32_MAX)
		return NULL;
	writer->module_ids[process][index] = writer->module_count++;
	stall_record_module(&writer->json);
	stall_put_module_id(json, writer->module_ids[process][index]);
	stall_put_module_process(json, process);
	stall_put_module_path(json, module->path);
	stall_put_module_start(json, module->start);
	stall_put_module_end(json, module->end);
	stall_put_module_bias(json, info ? info->bias : 0);
	stall_put_module_build_id(json, info && info->build_id[0] ? info->build_id : NULL);
	stall_put_module_deleted(json, module->deleted);
	stall_put_module_symbols(json, info && info->symbols ? info->symbols : "none");
	stall_put_module_cfi(json, info && info->cfi ? info->cfi : "none");
	stall_put_module_debug_file(json, info ? info->debug_file : NULL);
	stall_put_module_error(json, info && info->error ? info->error : module->error);
	return end(writer);
}

static bool is_module(const struct stall_snapshot *snapshot, uint32_t process, uint32_t module)
{
	return process < snapshot->process_count && snapshot->processes[process].maps &&
	       module < snapshot->processes[process].maps->module_count;
}

static struct stall_error *write_modules(struct writer *writer)
{
	const struct stall_snapshot *snapshot = writer->capture->snapshot;
	const struct stall_unwound *unwound = writer->capture->unwound;
	struct stall_error *err;

	writer->module_ids = calloc(snapshot->process_count, sizeof(*writer->module_ids));
	if (!writer->module_ids)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->process_count; i++) {
		size_t count =
			snapshot->processes[i].maps ? snapshot->processes[i].maps->module_count : 0;
		writer->module_ids[i] = malloc((count + 1) * sizeof(**writer->module_ids));
		if (!writer->module_ids[i])
			return &stall_enomem;
		memset(writer->module_ids[i], 0xff, count * sizeof(**writer->module_ids));
	}
	for (size_t i = 0; i < unwound->module_count; i++) {
		const struct stall_module_info *info = &unwound->modules[i];
		if (!is_module(snapshot, info->process, info->module))
			continue;
		err = write_module(writer, info->process, info->module, info);
		if (err)
			return err;
	}
	// Files of frames of which the worker reported nothing.
	for (size_t i = 0; i < unwound->frame_count; i++) {
		const struct stall_frame *frame = &unwound->frames[i];
		if (!is_module(snapshot, frame->process, frame->module))
			continue;
		err = write_module(writer, frame->process, frame->module, NULL);
		if (err)
			return err;
	}
	return NULL;
}

static struct stall_error *write_frame(struct writer *writer, size_t id)
{
	const struct stall_snapshot *snapshot = writer->capture->snapshot;
	const struct stall_frame *frame = &writer->capture->unwound->frames[id];
	struct stall_json *json = &writer->json;
	bool has_module = is_module(snapshot, frame->process, frame->module);
	uint32_t same = writer->names.same ? writer->names.same[id] : UINT32_MAX;

	stall_record_frame(&writer->json);
	stall_put_frame_id(json, id);
	stall_put_frame_process(json, frame->process);
	stall_put_frame_module(json, has_module ? writer->module_ids[frame->process][frame->module]
						: UINT32_MAX);
	stall_put_frame_pc(json, frame->pc);
	stall_put_frame_offset(json, has_module, frame->offset);
	stall_put_frame_symbol(json, same == UINT32_MAX ? frame->symbol : NULL);
	stall_put_frame_linkage(json, same == UINT32_MAX ? frame->linkage : NULL);
	stall_put_frame_symbol_offset(json, frame->symbol, frame->symbol_offset);
	if (same != UINT32_MAX)
		stall_put_frame_same_name(json, same);
	return end(writer);
}

static struct stall_error *write_kernel_frame(struct writer *writer, size_t id,
					      const struct stall_kernel_symbol *symbol)
{
	struct stall_json *json = &writer->json;

	stall_record_frame(&writer->json);
	stall_put_frame_id(json, id);
	stall_put_frame_kernel(json, true);
	stall_put_frame_process(json, UINT32_MAX);
	stall_put_frame_module(json, UINT32_MAX);
	stall_put_frame_pc(json, symbol->address);
	stall_put_frame_offset(json, false, 0);
	stall_put_frame_symbol(json, symbol->name);
	stall_put_frame_linkage(json, NULL);
	stall_put_frame_symbol_offset(json, symbol->name, symbol->offset);
	return end(writer);
}

static struct stall_error *write_frames(struct writer *writer)
{
	const struct stall_capture_stacks *stacks = writer->capture->stacks;
	size_t user_count = writer->capture->unwound->frame_count;
	size_t start = writer->written + writer->json.size;
	struct stall_error *err = NULL;

	for (; !err && writer->frames < user_count && !is_full(writer, start); writer->frames++)
		err = write_frame(writer, writer->frames);
	for (;
	     !err && writer->kernel_frames < stacks->kernel_frame_count && !is_full(writer, start);
	     writer->kernel_frames++)
		err = write_kernel_frame(writer, writer->frames + writer->kernel_frames,
					 &stacks->kernel_frames[writer->kernel_frames]);
	return err;
}

// The id of a frame's record; false: it was left out.
static bool frame_id(const struct writer *writer, uint32_t frame, size_t *ret)
{
	size_t user_count = writer->capture->unwound->frame_count;

	*ret = frame < user_count ? frame : frame - user_count + writer->frames;
	return frame < user_count ? frame < writer->frames
				  : frame - user_count < writer->kernel_frames;
}

// UINT32_MAX where it was left out, as where there is none.
static uint32_t stack_id(const struct writer *writer, uint32_t stack)
{
	return stack < writer->stacks ? stack : UINT32_MAX;
}

static struct stall_error *write_stack(struct writer *writer, size_t id)
{
	const struct stall_capture_stack *stack = &writer->capture->stacks->stacks[id];
	struct stall_json *json = &writer->json;
	size_t frame;

	stall_record_stack(json);
	stall_put_stack_id(json, id);
	stall_put_stack_frames(json);
	stall_json_open(json, '[');
	for (uint32_t i = 0; i < stack->count && frame_id(writer, stack->frames[i], &frame); i++)
		stall_json_uint(json, frame);
	stall_json_close(json, ']');
	return end(writer);
}

static struct stall_error *write_stacks(struct writer *writer)
{
	size_t start = writer->written + writer->json.size;
	struct stall_error *err = NULL;

	for (; !err && writer->stacks < writer->capture->stacks->stack_count &&
	       !is_full(writer, start);
	     writer->stacks++)
		err = write_stack(writer, writer->stacks);
	return err;
}

// Both lists are sorted; a condition variable that got its true address later (stall_locks_name) is
// at another place, and written again.
static bool is_known_lock(const struct stall_locks *before, const struct stall_lock *lock,
			  size_t *at)
{
	while (*at < before->count && stall_lock_compare(&before->locks[*at], lock) < 0)
		++*at;
	return *at < before->count && stall_lock_is_same(&before->locks[*at], lock);
}

// In a later capture of a burst: those that are not as they were, and those of the threads that are
// written.
static struct stall_error *choose_locks(struct writer *writer)
{
	const struct stall_locks *locks = writer->capture->locks,
				 *before = writer->capture->locks_before;
	const struct stall_snapshot *snapshot = writer->capture->snapshot;
	size_t at = 0, id = 0;

	writer->lock_ids = malloc((locks->count + 1) * sizeof(*writer->lock_ids));
	if (!writer->lock_ids)
		return &stall_enomem;
	for (size_t i = 0; i < locks->count; i++)
		writer->lock_ids[i] =
			before && is_known_lock(before, &locks->locks[i], &at) ? UINT32_MAX : 0;
	for (size_t i = 0; before && i < snapshot->thread_count; i++)
		if (!snapshot->threads[i].unchanged && locks->thread_lock[i] != UINT32_MAX)
			writer->lock_ids[locks->thread_lock[i]] = 0;
	for (size_t i = 0; i < locks->count; i++)
		if (writer->lock_ids[i] != UINT32_MAX)
			writer->lock_ids[i] = id++;
	return NULL;
}

static struct stall_error *write_locks(struct writer *writer)
{
	const struct stall_locks *locks = writer->capture->locks;
	struct stall_error *err = choose_locks(writer);

	for (size_t i = 0; !err && i < locks->count; i++) {
		if (writer->lock_ids[i] == UINT32_MAX)
			continue;
		stall_record_lock(&writer->json);
		stall_lock_record_write(&locks->locks[i], writer->lock_ids[i], &writer->json);
		err = end(writer);
	}
	return err;
}

static uint32_t lock_id(const struct writer *writer, uint32_t lock)
{
	return lock == UINT32_MAX ? UINT32_MAX : writer->lock_ids[lock];
}

static void write_syscall(struct stall_json *json, const struct stall_thread *thread)
{
	stall_put_thread_syscall(json);
	if (!thread->in_syscall) {
		stall_json_null(json);
		return;
	}
	stall_json_open(json, '{');
	stall_put_syscall_nr(json, thread->syscall);
	stall_put_syscall_name(json, stall_syscall_name(thread->syscall));
	stall_put_syscall_args(json);
	stall_json_open(json, '[');
	for (int i = 0; i < 6; i++)
		stall_json_hex(json, thread->args[i]);
	stall_json_close(json, ']');
	stall_json_close(json, '}');
}

static void write_file(struct writer *writer, size_t index)
{
	const struct stall_blocked_files *blocked = writer->capture->blocked;
	const struct stall_blocked_file *file =
		blocked ? stall_blocked_file_of(blocked, (uint32_t)index) : NULL;
	struct stall_json *json = &writer->json;

	if (!file)
		return;
	stall_put_thread_file(json);
	stall_json_open(json, '{');
	stall_put_file_path(json, file->path);
	stall_put_file_mount(json, file->mount);
	stall_put_file_device(json, file->device);
	stall_put_file_type(json, file->type);
	stall_json_close(json, '}');
}

static struct stall_error *write_thread(struct writer *writer, size_t index)
{
	const struct stall_thread *thread = &writer->capture->snapshot->threads[index];
	const struct stall_stack *stack = &writer->capture->unwound->stacks[index];
	struct stall_json *json = &writer->json;

	stall_record_thread(&writer->json);
	stall_put_thread_process(json, thread->process);
	stall_put_thread_tid(json, thread->tid);
	if (thread->ns_tid && thread->ns_tid != thread->tid)
		stall_put_thread_ns_tid(json, thread->ns_tid);
	stall_put_thread_name(json, thread->comm, strnlen(thread->comm, sizeof(thread->comm)));
	stall_put_thread_state(json, &thread->state, 1);
	stall_put_thread_on_cpu(json, thread->on_cpu);
	if (thread->own)
		stall_put_thread_own(json, true);
	stall_put_thread_label(json, stall_label_name(thread->label));
	if (thread->label_reason)
		stall_put_thread_label_reason(json, stall_label_reason_name(thread->label_reason));
	stall_put_thread_passes(json, thread->passes);
	stall_put_thread_stopped_ns(json, thread->stopped_ns);
	stall_put_thread_switches(json, thread->switches);
	write_syscall(json, thread);
	write_file(writer, index);
	stall_put_thread_stack(json, stack_id(writer, writer->capture->stacks->user[index]));
	stall_put_thread_kernel_stack(json,
				      stack_id(writer, writer->capture->stacks->kernel[index]));
	stall_put_thread_unwind(json, stall_unwind_end_name(stack->end));
	if (stack->live_reads)
		stall_put_thread_live_reads(json, stack->live_reads);
	stall_put_thread_lock(json, lock_id(writer, writer->capture->locks->thread_lock[index]));
	if (thread->waited_ns)
		stall_put_thread_waited_ns(json, thread->waited_ns);
	return end(writer);
}

static uint32_t find_lock(const struct stall_locks *locks, uint32_t process, uint64_t address)
{
	for (size_t i = 0; i < locks->count; i++) {
		if (locks->locks[i].process == process && locks->locks[i].address == address)
			return (uint32_t)i;
	}
	return UINT32_MAX;
}

static bool is_same_release(const struct stall_capture *capture, size_t a, size_t b)
{
	const struct stall_snapshot *snapshot = capture->snapshot;
	const struct stall_thread *threads = snapshot->threads + snapshot->thread_count;
	const uint32_t *stacks = capture->stacks->user + snapshot->thread_count;

	return snapshot->releases[a].object == snapshot->releases[b].object &&
	       threads[a].process == threads[b].process && stacks[a] == stacks[b];
}

// One record for all of a lock that have the same stack: the latest, which comes first. Locks have
// few of them (STALL_RELEASES_LOCK).
static struct stall_error *write_release(struct writer *writer, size_t index)
{
	const struct stall_capture *capture = writer->capture;
	const struct stall_snapshot *snapshot = capture->snapshot;
	const struct stall_release *release = &snapshot->releases[index];
	const struct stall_thread *thread = &snapshot->threads[snapshot->thread_count + index];
	uint64_t waited_ns = release->waited_ns;
	uint32_t count = release->count;
	struct stall_json *json = &writer->json;

	for (size_t i = 0; i < index; i++) {
		if (is_same_release(capture, i, index))
			return NULL;
	}
	for (size_t i = index + 1; i < snapshot->release_count; i++) {
		if (!is_same_release(capture, i, index))
			continue;
		count += snapshot->releases[i].count;
		if (snapshot->releases[i].waited_ns > waited_ns)
			waited_ns = snapshot->releases[i].waited_ns;
	}
	stall_record_release(&writer->json);
	stall_put_release_process(json, thread->process);
	stall_put_release_tid(json, thread->tid);
	stall_put_release_lock(json, lock_id(writer, find_lock(capture->locks, thread->process,
							       release->object)));
	stall_put_release_name(json, thread->comm, strnlen(thread->comm, sizeof(thread->comm)));
	stall_put_release_stack(json,
				stack_id(writer,
					 capture->stacks->user[snapshot->thread_count + index]));
	stall_put_release_label(json, stall_label_name(thread->label));
	stall_put_release_ago_ns(json, release->ago_ns);
	stall_put_release_waited_ns(json, waited_ns, waited_ns);
	if (count > 1)
		stall_put_release_count(json, count);
	return end(writer);
}

static size_t first_sample(const struct stall_snapshot *snapshot)
{
	return snapshot->thread_count + snapshot->release_count;
}

static bool is_same_sample(const struct stall_capture *capture, size_t a, size_t b)
{
	const struct stall_thread *threads = capture->snapshot->threads;

	return threads[a].tid == threads[b].tid &&
	       capture->stacks->user[a] == capture->stacks->user[b] &&
	       capture->stacks->kernel[a] == capture->stacks->kernel[b];
}

// One record for all of a thread with the same stacks, which follow one another on their CPU.
static struct stall_error *write_samples(struct writer *writer)
{
	const struct stall_capture *capture = writer->capture;
	size_t at = first_sample(capture->snapshot), end_at = at + capture->snapshot->samples.count;
	struct stall_error *err = NULL;

	for (size_t next; !err && at < end_at; at = next) {
		const struct stall_thread *thread = &capture->snapshot->threads[at];
		struct stall_json *json = &writer->json;

		for (next = at + 1; next < end_at && is_same_sample(capture, at, next);)
			next++;
		stall_record_sample(json);
		stall_put_sample_process(json, thread->process);
		stall_put_sample_tid(json, thread->tid);
		stall_put_sample_name(json, thread->comm,
				      strnlen(thread->comm, sizeof(thread->comm)));
		stall_put_sample_stack(json, stack_id(writer, capture->stacks->user[at]));
		stall_put_sample_kernel_stack(json, stack_id(writer, capture->stacks->kernel[at]));
		stall_put_sample_label(json, stall_label_name(thread->label));
		if (next - at > 1)
			stall_put_sample_count(json, next - at);
		err = end(writer);
	}
	return err;
}

static struct stall_error *note_left_out(struct writer *writer)
{
	const struct stall_capture_stacks *stacks = writer->capture->stacks;
	size_t frames = writer->capture->unwound->frame_count - writer->frames +
			stacks->kernel_frame_count - writer->kernel_frames;
	size_t left = stacks->stack_count - writer->stacks;
	char message[160];

	if (!frames && !left)
		return NULL;
	snprintf(message, sizeof(message),
		 "%zu frames and %zu stacks were left out: a capture has at most %zu MiB of each",
		 frames, left, writer->max_bytes >> 20);
	stall_note_write(&writer->json, "capture-size", message);
	return end(writer);
}

static struct stall_error *write_notes(struct writer *writer)
{
	const struct stall_snapshot *snapshot = writer->capture->snapshot;
	struct stall_error *err = note_left_out(writer);

	for (size_t i = 0; !err && i < snapshot->note_count; i++) {
		stall_note_write(&writer->json, snapshot->notes[i].code,
				 snapshot->notes[i].message);
		err = end(writer);
	}
	return err;
}

static struct stall_error *write_trigger(struct writer *writer)
{
	if (!writer->capture->trigger)
		return NULL;
	stall_record_trigger(&writer->json);
	stall_trigger_write(writer->capture->trigger, writer->capture->locks, &writer->json);
	return end(writer);
}

// What a later capture of a burst has of the one before.
static void write_following(struct stall_json *json, const struct stall_snapshot *snapshot)
{
	const struct stall_snapshot *before = snapshot->before;
	size_t unchanged = 0, at = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++)
		unchanged += snapshot->threads[i].unchanged;
	stall_put_end_unchanged(json, unchanged);
	stall_put_end_ended(json);
	stall_json_open(json, '[');
	for (size_t i = 0; i < before->thread_count; i++) {
		const struct stall_thread *old = &before->threads[i];

		if (!stall_snapshot_seek(snapshot, &at, old->process, old->tid))
			stall_json_uint(json, old->tid);
	}
	stall_json_close(json, ']');
}

static void write_sampling(struct stall_json *json, const struct stall_samples *samples)
{
	if (!samples->period_ns)
		return;
	stall_put_end_sample_period_ns(json, samples->period_ns);
	stall_put_end_sample_window_ns(json, samples->window_ns);
	stall_put_end_sample_cpus(json, samples->cpus);
	stall_put_end_samples_lost(json, samples->lost);
}

static struct stall_error *write_end(struct writer *writer, uint64_t write_started_ns)
{
	const struct stall_capture *capture = writer->capture;
	const struct stall_snapshot *snapshot = capture->snapshot;
	size_t labels[STALL_TRUNCATED + 1] = {};
	uint64_t stopped_ns = 0, live_reads = 0;
	struct stall_json *json = &writer->json;

	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];
		labels[thread->label]++;
		if (thread->stopped_ns > stopped_ns)
			stopped_ns = thread->stopped_ns;
		live_reads += capture->unwound->stacks[i].live_reads;
	}
	stall_record_end(&writer->json);
	stall_put_end_threads(json, snapshot->thread_count);
	stall_put_end_labels(json);
	stall_json_open(json, '{');
	stall_put_labels_verified(json, labels[STALL_VERIFIED]);
	stall_put_labels_raced(json, labels[STALL_RACED]);
	stall_put_labels_running(json, labels[STALL_RUNNING]);
	stall_put_labels_truncated(json, labels[STALL_TRUNCATED]);
	stall_json_close(json, '}');
	stall_put_end_stopped_ns(json, stopped_ns);
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);
	stall_put_end_elapsed_ns(json, now - capture->started_ns);
	stall_put_end_phases(json);
	stall_json_open(json, '{');
	stall_put_phases_attach_ns(json, capture->attach_ns);
	stall_put_phases_snapshot_ns(json, snapshot->snapshot_ns);
	stall_put_phases_unwind_ns(json, capture->unwind_ns);
	stall_put_phases_locks_ns(json, capture->locks_ns);
	stall_put_phases_write_ns(json, now - write_started_ns);
	stall_json_close(json, '}');
	stall_put_end_live_reads(json, live_reads);
	if (snapshot->before)
		write_following(json, snapshot);
	write_sampling(json, &snapshot->samples);
	return end(writer);
}

static struct stall_error *write_records(struct writer *writer)
{
	const struct stall_capture *capture = writer->capture;
	struct stall_error *err = stall_frame_names_init(&writer->names, capture->unwound);

	if (!err)
		err = write_head(writer);
	// The first capture of a burst has the processes.
	for (uint32_t i = 0;
	     !err && !capture->snapshot->before && i < capture->snapshot->process_count; i++)
		err = write_process(writer, i);
	if (!err)
		err = write_modules(writer);
	if (!err)
		err = write_frames(writer);
	if (!err)
		err = write_stacks(writer);
	if (!err)
		err = write_locks(writer);
	for (size_t i = 0; !err && i < capture->snapshot->thread_count; i++)
		if (!capture->snapshot->threads[i].unchanged)
			err = write_thread(writer, i);
	for (size_t i = 0; !err && i < capture->snapshot->release_count; i++)
		err = write_release(writer, i);
	if (!err)
		err = write_samples(writer);
	if (!err)
		err = write_notes(writer);
	return err;
}

static void writer_deinit(struct writer *writer)
{
	if (writer->module_ids)
		for (size_t i = 0; i < writer->capture->snapshot->process_count; i++)
			free(writer->module_ids[i]);
	free(writer->module_ids);
	free(writer->lock_ids);
	stall_frame_names_deinit(&writer->names);
	stall_json_deinit(&writer->json);
}

struct stall_error *stall_capture_write(const struct stall_capture *capture,
					struct stall_output *output)
{
	_cleanup_(writer_deinit) struct writer writer = {
		.capture = capture,
		.output = output,
		.max_bytes =
			capture->max_table_bytes ? capture->max_table_bytes : STALL_MAX_TABLE_BYTES,
	};
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);

	stall_json_init(&writer.json);
	struct stall_error *err = write_records(&writer);
	if (err)
		return err;
	// The writing so far counts in write_ns.
	err = flush(&writer);
	if (err)
		return err;
	err = write_trigger(&writer);
	if (!err)
		err = write_end(&writer, started_ns);
	return err ? err : flush(&writer);
}

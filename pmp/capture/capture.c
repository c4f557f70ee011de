// SPDX-License-Identifier: Apache-2.0
#include "capture/capture.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "capture/capture_stacks.h"
#include "capture/cmdline.h"
#include "capture/lock_record.h"
#include "capture/syscalls.h"

#define SCHEMA "stallscope.capture/1"
// Written out when so much has come together, so that memory does not grow with the capture.
#define FLUSH_BYTES (1024 * 1024)

struct writer {
	const struct stall_capture *capture;
	struct stall_output *output;
	struct stall_json json;
	uint32_t **module_ids; // by process, by module: id of the record, or UINT32_MAX
	size_t module_count;
};

static void begin(struct writer *writer, const char *type)
{
	stall_json_open(&writer->json, '{');
	stall_json_member_string(&writer->json, "type", type);
}

static struct stall_error *flush(struct writer *writer)
{
	if (writer->json.failed)
		return &stall_enomem;
	struct stall_error *err =
		stall_output_write(writer->output, writer->json.data, writer->json.size);
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

static void member_index(struct stall_json *json, const char *key, uint32_t index)
{
	stall_json_key(json, key);
	if (index == UINT32_MAX)
		stall_json_null(json);
	else
		stall_json_uint(json, index);
}

static void write_host(struct stall_json *json, const struct stall_host *host)
{
	stall_json_key(json, "host");
	stall_json_open(json, '{');
	stall_json_member_string(json, "name", host->name.nodename);
	stall_json_member_string(json, "kernel", host->name.release);
	stall_json_member_string(json, "arch", host->name.machine);
	stall_json_member_int(json, "cpus", host->cpus);
	stall_json_close(json, '}');
}

static void write_time(struct stall_json *json, uint64_t wall_ns)
{
	char date[32], text[48];
	time_t seconds = wall_ns / 1000000000;
	struct tm tm;

	gmtime_r(&seconds, &tm);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text, sizeof(text), "%s.%06uZ", date, (unsigned int)(wall_ns / 1000 % 1000000));
	stall_json_member_string(json, "time", text);
	stall_json_member_uint(json, "time_ns", wall_ns);
}

static struct stall_error *write_head(struct writer *writer)
{
	const struct stall_snapshot *snapshot = writer->capture->snapshot;
	struct stall_json *json = &writer->json;

	begin(writer, "capture");
	stall_json_member_string(json, "schema", SCHEMA);
	stall_json_key(json, "tool");
	stall_json_open(json, '{');
	stall_json_member_string(json, "name", "stallscope-probe");
	stall_json_member_string(json, "version", STALL_VERSION);
	stall_json_close(json, '}');
	write_time(json, snapshot->wall_ns);
	write_host(json, writer->capture->host);
	stall_json_member_string(json, "backend", snapshot->backend);
	stall_json_member_string(json, "backend_reason", snapshot->backend_reason);
	stall_json_member_uint(json, "snapshot_ns", snapshot->snapshot_ns);
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
	begin(writer, "process");
	stall_json_member_uint(json, "id", index);
	stall_json_member_int(json, "pid", process->target.pid);
	stall_json_member_int(json, "ppid", process->ppid);
	stall_json_member_uint(json, "start_time", process->target.start_time);
	stall_json_key(json, "comm");
	stall_json_string_n(json, process->comm, strnlen(process->comm, sizeof(process->comm)));
	stall_json_member_string(json, "exe", process->exe);
	stall_json_member_bool(json, "exe_deleted", process->exe_deleted);
	stall_json_key(json, "cmdline");
	stall_json_open(json, '[');
	for (size_t i = 0; i < cmdline.count; i++)
		stall_json_string(json, cmdline.arguments[i]);
	stall_json_close(json, ']');
	stall_json_key(json, "strings");
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
	stall_json_member_uint(json, "threads_lost", process->threads_lost);
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
	begin(writer, "module");
	stall_json_member_uint(json, "id", writer->module_ids[process][index]);
	stall_json_member_uint(json, "process", process);
	stall_json_member_string(json, "path", module->path);
	stall_json_member_hex(json, "start", module->start);
	stall_json_member_hex(json, "end", module->end);
	stall_json_member_hex(json, "bias", info ? info->bias : 0);
	stall_json_member_string(json, "build_id",
				 info && info->build_id[0] ? info->build_id : NULL);
	stall_json_member_bool(json, "deleted", module->deleted);
	stall_json_member_string(json, "symbols", info && info->symbols ? info->symbols : "none");
	stall_json_member_string(json, "cfi", info && info->cfi ? info->cfi : "none");
	stall_json_member_string(json, "debug_file", info ? info->debug_file : NULL);
	stall_json_member_string(json, "error", info && info->error ? info->error : module->error);
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
	// Files of frames of which the worker said nothing.
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

	begin(writer, "frame");
	stall_json_member_uint(json, "id", id);
	stall_json_member_uint(json, "process", frame->process);
	member_index(json, "module",
		     has_module ? writer->module_ids[frame->process][frame->module] : UINT32_MAX);
	stall_json_member_hex(json, "pc", frame->pc);
	stall_json_key(json, "offset");
	if (has_module)
		stall_json_hex(json, frame->offset);
	else
		stall_json_null(json);
	stall_json_member_string(json, "symbol", frame->symbol);
	stall_json_member_string(json, "linkage", frame->linkage);
	stall_json_key(json, "symbol_offset");
	if (frame->symbol)
		stall_json_uint(json, frame->symbol_offset);
	else
		stall_json_null(json);
	return end(writer);
}

static struct stall_error *write_kernel_frame(struct writer *writer, size_t id,
					      const struct stall_kernel_symbol *symbol)
{
	struct stall_json *json = &writer->json;

	begin(writer, "frame");
	stall_json_member_uint(json, "id", id);
	stall_json_member_bool(json, "kernel", true);
	member_index(json, "process", UINT32_MAX);
	member_index(json, "module", UINT32_MAX);
	stall_json_member_hex(json, "pc", symbol->address);
	member_index(json, "offset", UINT32_MAX);
	stall_json_member_string(json, "symbol", symbol->name);
	member_index(json, "linkage", UINT32_MAX);
	stall_json_key(json, "symbol_offset");
	if (symbol->name)
		stall_json_uint(json, symbol->offset);
	else
		stall_json_null(json);
	return end(writer);
}

static struct stall_error *write_frames(struct writer *writer)
{
	const struct stall_capture_stacks *stacks = writer->capture->stacks;
	size_t user_count = writer->capture->unwound->frame_count;
	struct stall_error *err;

	for (size_t i = 0; i < user_count; i++) {
		err = write_frame(writer, i);
		if (err)
			return err;
	}
	for (size_t i = 0; i < stacks->kernel_frame_count; i++) {
		err = write_kernel_frame(writer, user_count + i, &stacks->kernel_frames[i]);
		if (err)
			return err;
	}
	return NULL;
}

static struct stall_error *write_stacks(struct writer *writer)
{
	struct stall_json *json = &writer->json;

	for (size_t i = 0; i < writer->capture->stacks->stack_count; i++) {
		const struct stall_capture_stack *stack = &writer->capture->stacks->stacks[i];
		begin(writer, "stack");
		stall_json_member_uint(json, "id", i);
		stall_json_key(json, "frames");
		stall_json_open(json, '[');
		for (uint32_t j = 0; j < stack->count; j++)
			stall_json_uint(json, stack->frames[j]);
		stall_json_close(json, ']');
		struct stall_error *err = end(writer);
		if (err)
			return err;
	}
	return NULL;
}

static struct stall_error *write_lock(struct writer *writer, size_t id)
{
	begin(writer, "lock");
	stall_lock_record_write(&writer->capture->locks->locks[id], id, &writer->json);
	return end(writer);
}

static void write_syscall(struct stall_json *json, const struct stall_thread *thread)
{
	stall_json_key(json, "syscall");
	if (!thread->in_syscall) {
		stall_json_null(json);
		return;
	}
	stall_json_open(json, '{');
	stall_json_member_int(json, "nr", thread->syscall);
	stall_json_member_string(json, "name", stall_syscall_name(thread->syscall));
	stall_json_key(json, "args");
	stall_json_open(json, '[');
	for (int i = 0; i < 6; i++)
		stall_json_hex(json, thread->args[i]);
	stall_json_close(json, ']');
	stall_json_close(json, '}');
}

static struct stall_error *write_thread(struct writer *writer, size_t index)
{
	const struct stall_thread *thread = &writer->capture->snapshot->threads[index];
	const struct stall_stack *stack = &writer->capture->unwound->stacks[index];
	struct stall_json *json = &writer->json;

	begin(writer, "thread");
	stall_json_member_uint(json, "process", thread->process);
	stall_json_member_int(json, "tid", thread->tid);
	if (thread->ns_tid && thread->ns_tid != thread->tid)
		stall_json_member_int(json, "ns_tid", thread->ns_tid);
	stall_json_key(json, "name");
	stall_json_string_n(json, thread->comm, strnlen(thread->comm, sizeof(thread->comm)));
	stall_json_key(json, "state");
	stall_json_string_n(json, &thread->state, 1);
	stall_json_member_bool(json, "on_cpu", thread->on_cpu);
	stall_json_member_string(json, "label", stall_label_name(thread->label));
	if (thread->label_reason)
		stall_json_member_string(json, "label_reason",
					 stall_label_reason_name(thread->label_reason));
	stall_json_member_uint(json, "passes", thread->passes);
	stall_json_member_uint(json, "stopped_ns", thread->stopped_ns);
	stall_json_member_uint(json, "switches", thread->switches);
	write_syscall(json, thread);
	member_index(json, "stack", writer->capture->stacks->user[index]);
	member_index(json, "kernel_stack", writer->capture->stacks->kernel[index]);
	stall_json_member_string(json, "unwind", stall_unwind_end_name(stack->end));
	if (stack->live_reads)
		stall_json_member_uint(json, "live_reads", stack->live_reads);
	member_index(json, "lock", writer->capture->locks->thread_lock[index]);
	if (thread->waited_ns)
		stall_json_member_uint(json, "waited_ns", thread->waited_ns);
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
	begin(writer, "release");
	stall_json_member_uint(json, "process", thread->process);
	stall_json_member_int(json, "tid", thread->tid);
	member_index(json, "lock", find_lock(capture->locks, thread->process, release->object));
	stall_json_key(json, "name");
	stall_json_string_n(json, thread->comm, strnlen(thread->comm, sizeof(thread->comm)));
	member_index(json, "stack", capture->stacks->user[snapshot->thread_count + index]);
	stall_json_member_string(json, "label", stall_label_name(thread->label));
	stall_json_member_uint(json, "ago_ns", release->ago_ns);
	stall_json_key(json, "waited_ns");
	if (waited_ns)
		stall_json_uint(json, waited_ns);
	else
		stall_json_null(json);
	if (count > 1)
		stall_json_member_uint(json, "count", count);
	return end(writer);
}

static struct stall_error *write_notes(struct writer *writer)
{
	const struct stall_snapshot *snapshot = writer->capture->snapshot;

	for (size_t i = 0; i < snapshot->note_count; i++) {
		begin(writer, "note");
		stall_json_member_string(&writer->json, "code", snapshot->notes[i].code);
		stall_json_member_string(&writer->json, "message", snapshot->notes[i].message);
		struct stall_error *err = end(writer);
		if (err)
			return err;
	}
	return NULL;
}

static struct stall_error *write_trigger(struct writer *writer)
{
	if (!writer->capture->trigger)
		return NULL;
	begin(writer, "trigger");
	stall_trigger_write(writer->capture->trigger, writer->capture->locks, &writer->json);
	return end(writer);
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
	begin(writer, "end");
	stall_json_member_uint(json, "threads", snapshot->thread_count);
	stall_json_key(json, "labels");
	stall_json_open(json, '{');
	for (int i = 0; i <= STALL_TRUNCATED; i++)
		stall_json_member_uint(json, stall_label_name(i), labels[i]);
	stall_json_close(json, '}');
	stall_json_member_uint(json, "stopped_ns", stopped_ns);
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);
	stall_json_member_uint(json, "elapsed_ns", now - capture->started_ns);
	stall_json_key(json, "phases");
	stall_json_open(json, '{');
	stall_json_member_uint(json, "attach_ns", capture->attach_ns);
	stall_json_member_uint(json, "snapshot_ns", snapshot->snapshot_ns);
	stall_json_member_uint(json, "unwind_ns", capture->unwind_ns);
	stall_json_member_uint(json, "locks_ns", capture->locks_ns);
	stall_json_member_uint(json, "write_ns", now - write_started_ns);
	stall_json_close(json, '}');
	stall_json_member_uint(json, "live_reads", live_reads);
	return end(writer);
}

static struct stall_error *write_records(struct writer *writer)
{
	const struct stall_capture *capture = writer->capture;
	struct stall_error *err = write_head(writer);

	for (uint32_t i = 0; !err && i < capture->snapshot->process_count; i++)
		err = write_process(writer, i);
	if (!err)
		err = write_modules(writer);
	if (!err)
		err = write_frames(writer);
	if (!err)
		err = write_stacks(writer);
	for (size_t i = 0; !err && i < capture->locks->count; i++)
		err = write_lock(writer, i);
	for (size_t i = 0; !err && i < capture->snapshot->thread_count; i++)
		err = write_thread(writer, i);
	for (size_t i = 0; !err && i < capture->snapshot->release_count; i++)
		err = write_release(writer, i);
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
	stall_json_deinit(&writer->json);
}

struct stall_error *stall_capture_write(const struct stall_capture *capture,
					struct stall_output *output)
{
	_cleanup_(writer_deinit) struct writer writer = {.capture = capture, .output = output};
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);

	stall_json_init(&writer.json);
	struct stall_error *err = write_records(&writer);
	if (err)
		return err;
	// What was written so far counts in write_ns.
	err = flush(&writer);
	if (err)
		return err;
	err = write_trigger(&writer);
	if (!err)
		err = write_end(&writer, started_ns);
	return err ? err : flush(&writer);
}

// SPDX-License-Identifier: Apache-2.0
#include "command/rings_command.h"

#include "base/cleanup.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "ebpf/wait_kinds.h"
#include "rings/ring_file.h"
#include "rings/ring_list.h"

// What has a threshold of its own: all locks together, and each kind of the others.
static const char *threshold_name(enum stall_wait_kind kind)
{
	if (kind == STALL_WAIT_FUTEX)
		return "lock";
	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (stall_watch_wait_kind(i) == kind)
			return stall_watch_kind_name(i);
	return "unknown";
}

static void write_header(struct stall_json *json, const struct stall_ring_header *header)
{
	stall_json_member_uint(json, "size", header->file_size);
	stall_json_member_int(json, "pid", header->pid);
	stall_json_member_uint(json, "created_ns", header->created_ns);
	stall_json_member_uint(json, "created_wall_ns", header->created_wall_ns);
	stall_json_member_string(json, "comm", header->comm);
	stall_json_member_string(json, "exe", header->exe);
	stall_json_member_string(json, "library", header->library);
	stall_json_member_bool(json, "enabled", header->enabled);
	stall_json_key(json, "thresholds_ms");
	stall_json_open(json, '{');
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		stall_json_member_ms(json, threshold_name(i), header->threshold_ns[i]);
	stall_json_close(json, '}');
	stall_json_member_uint(json, "slots", header->slot_count);
	stall_json_member_uint(json, "waits", header->waits);
	stall_json_member_uint(json, "records", header->head);
	stall_json_key(json, "lost");
	stall_json_open(json, '{');
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		if (header->lost[i])
			stall_json_member_uint(json, stall_wait_lost_name(i), header->lost[i]);
	stall_json_close(json, '}');
}

static void write_ring(struct stall_json *json, const struct stall_listed_ring *ring)
{
	static const char *const lives[] = {
		[STALL_RING_LIFE_UNKNOWN] = "unknown",
		[STALL_RING_LIFE_ALIVE] = "alive",
		[STALL_RING_LIFE_ENDED] = "ended",
		[STALL_RING_LIFE_LEFT] = "left",
	};

	stall_json_open(json, '{');
	stall_json_member_string(json, "path", ring->path);
	stall_json_member_string(json, "life", lives[ring->life]);
	if (ring->process)
		stall_json_member_int(json, "process", ring->process);
	if (ring->err) {
		stall_json_member_string(json, "error", ring->err->message);
	} else {
		stall_json_key(json, "ring");
		stall_json_open(json, '{');
		stall_json_member_uint(json, "owner", ring->owner);
		stall_json_member_uint(json, "threads", ring->threads);
		stall_json_member_uint(json, "waiting", ring->waiting);
		write_header(json, &ring->header);
		stall_json_close(json, '}');
	}
	stall_json_close(json, '}');
	stall_json_newline(json);
}

static struct stall_error *write_list(const struct stall_ring_list *list, int out)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};

	for (size_t i = 0; i < list->count; i++)
		write_ring(&json, &list->rings[i]);
	return stall_lines_write(&json, out);
}

static struct stall_error *set(const char *path, enum stall_recording recording,
			       const struct stall_wait_source_options *source)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	struct stall_error *err = stall_ring_open(path, true, &ring);

	if (err)
		return err;
	if (!stall_ring_is_writable(ring))
		return stall_error_create(STALL_ERROR_PERMISSION,
					  "%s: cannot write to the ring; be the user that the "
					  "server ran as when it made it, or root",
					  path);
	if (recording)
		stall_ring_live(ring)->enabled = recording == STALL_RECORDING_ON;
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if (source->asked & 1u << i)
			stall_ring_set_threshold(ring, i, source->threshold_ns[i]);
	return NULL;
}

static struct stall_error *fill(struct stall_ring_list *list,
				const struct stall_rings_options *options, const pid_t *pids,
				size_t pid_count)
{
	struct stall_error *err = NULL;

	if (!options->path_count && !pid_count)
		return stall_ring_list_add_all(list);
	for (size_t i = 0; !err && i < options->path_count; i++)
		err = stall_ring_list_add(list, options->paths[i]);
	for (size_t i = 0; !err && i < pid_count; i++)
		err = stall_ring_list_add_process(list, pids[i]);
	return err;
}

struct stall_error *stall_rings_run(const struct stall_rings_options *options, const pid_t *pids,
				    size_t pid_count,
				    const struct stall_wait_source_options *source, int out)
{
	_cleanup_(stall_ring_list_deinit) struct stall_ring_list list = {};
	bool sets = options->recording || source->asked;
	struct stall_error *err = NULL;

	for (size_t i = 0; sets && !err && i < options->path_count; i++)
		err = set(options->paths[i], options->recording, source);
	if (!err)
		err = fill(&list, options, pids, pid_count);
	if (!err)
		err = stall_ring_list_judge(&list);
	return err ? err : write_list(&list, out);
}

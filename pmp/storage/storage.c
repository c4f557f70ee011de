// SPDX-License-Identifier: Apache-2.0
#include "storage/storage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ebpf/storage_loader.h"
#include "ebpf/waits_attach.h"
#include "ebpf/waits_loader.h"
#include "ebpf/waits_read.h"
#include "snapshot/process_io.h"
#include "storage/storage_files.h"
#include "storage/storage_lines.h"

#define KINDS                                                                                      \
	(1U << STALL_WAIT_WRITE | 1U << STALL_WAIT_FSYNC | 1U << STALL_WAIT_FDATASYNC |            \
	 1U << STALL_WAIT_SYNC_FILE_RANGE | 1U << STALL_WAIT_MSYNC | 1U << STALL_WAIT_SYNCFS)
#define RING_BYTES (2U << 20) // 2,500 new files at once
#define MAX_RECORDS 4096      // that are taken at once

struct process {
	struct stall_target target;
	uint64_t start_ns;
	bool has_io;
	struct stall_process_io first, last;
	bool ended, over; // its final line was written
};

struct stall_storage {
	struct stall_bpf_waits *waits;
	struct stall_storage_files files;
	struct process *processes;
	size_t process_count;
	int epoll;		    // of the records and the ends of processes
	struct stall_error *failed; // while records are taken
};

static struct process *find_process(struct stall_storage *storage, pid_t pid)
{
	for (size_t i = 0; i < storage->process_count; i++)
		if (storage->processes[i].target.pid == pid)
			return &storage->processes[i];
	return NULL;
}

static void take_file(void *arg, const struct stall_wait_file *record)
{
	struct stall_storage *storage = arg;
	const struct process *process = find_process(storage, record->tgid);
	size_t index;

	if (!process || process->ended || storage->failed ||
	    !stall_bpf_waits_find(storage->waits, &record->key, &index))
		return;
	storage->failed =
		stall_storage_files_take(&storage->files, index, &process->target, record);
}

static struct stall_error *watch_fd(struct stall_storage *storage, int fd, uint64_t number)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = number};

	if (epoll_ctl(storage->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		return stall_error_os(errno, "epoll_ctl");
	return NULL;
}

static struct stall_error *add_process(struct stall_storage *storage, pid_t pid)
{
	struct process *process = &storage->processes[storage->process_count];
	struct stall_error *err = stall_target_init(&process->target, pid);

	if (err)
		return err;
	storage->process_count++;
	if (process->target.pidfd < 0)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "this kernel has no pidfd_open(2): process %d could be "
					  "taken for another one",
					  pid);
	err = stall_bpf_waits_add(storage->waits, pid);
	if (!err)
		err = stall_target_check(&process->target); // not another one with its number
	if (err)
		return err;
	process->start_ns = stall_clock_ns(CLOCK_MONOTONIC);
	process->has_io = stall_process_io_read(&process->target, &process->first);
	process->last = process->first;
	return watch_fd(storage, process->target.pidfd, storage->process_count);
}

static struct stall_error *init(struct stall_storage *storage, const pid_t *pids, size_t pid_count)
{
	struct stall_bpf_waits_options options;
	size_t count;

	stall_bpf_waits_options_init(&options);
	options.kinds = KINDS;
	options.storage = true;
	options.ring_bytes = RING_BYTES;
	storage->processes = calloc(pid_count, sizeof(*storage->processes));
	if (!storage->processes)
		return &stall_enomem;
	storage->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (storage->epoll < 0)
		return stall_error_os(errno, "epoll_create1");
	struct stall_error *err = stall_bpf_waits_create(&options, &storage->waits);
	if (err)
		return err;
	stall_bpf_waits_stats(storage->waits, &count);
	err = stall_storage_files_init(&storage->files, count);
	if (!err)
		err = watch_fd(storage, stall_bpf_waits_fd(storage->waits), 0);
	for (size_t i = 0; !err && i < pid_count; i++)
		err = add_process(storage, pids[i]);
	return err;
}

struct stall_error *stall_storage_create(const pid_t *pids, size_t pid_count,
					 struct stall_storage **ret)
{
	struct stall_storage *storage = calloc(1, sizeof(*storage));

	if (!storage)
		return &stall_enomem;
	storage->epoll = -1;
	struct stall_error *err = init(storage, pids, pid_count);
	if (err) {
		stall_storage_destroy(storage);
		return err;
	}
	*ret = storage;
	return NULL;
}

void stall_storage_destroy(struct stall_storage *storage)
{
	if (!storage)
		return;
	stall_bpf_waits_destroy(storage->waits);
	stall_storage_files_deinit(&storage->files);
	for (size_t i = 0; i < storage->process_count; i++)
		stall_target_deinit(&storage->processes[i].target);
	free(storage->processes);
	if (storage->epoll >= 0)
		close(storage->epoll);
	stall_error_destroy(storage->failed);
	free(storage);
}

int stall_storage_fd(const struct stall_storage *storage)
{
	return storage->epoll;
}

size_t stall_storage_alive(const struct stall_storage *storage)
{
	size_t alive = 0;

	for (size_t i = 0; i < storage->process_count; i++)
		alive += !storage->processes[i].ended;
	return alive;
}

static struct stall_error *take_records(struct stall_storage *storage)
{
	const struct stall_wait_handler handler = {.arg = storage, .file = take_file};
	size_t count;
	struct stall_error *err =
		stall_bpf_waits_consume(storage->waits, &handler, MAX_RECORDS, &count);

	if (!err) {
		err = storage->failed;
		storage->failed = NULL;
	}
	return err;
}

static void read_io(struct process *process)
{
	struct stall_process_io io;

	// A process that has ended has it until its parent asks for its end.
	if (process->has_io && stall_process_io_read(&process->target, &io))
		process->last = io;
}

static void end_process(struct stall_storage *storage, struct process *process)
{
	if (process->ended)
		return;
	process->ended = true;
	read_io(process);
	epoll_ctl(storage->epoll, EPOLL_CTL_DEL, process->target.pidfd, NULL);
	// Its number may be another process's from now on.
	stall_bpf_waits_remove(storage->waits, process->target.pid);
}

struct stall_error *stall_storage_dispatch(struct stall_storage *storage)
{
	struct epoll_event events[64];
	struct stall_error *err = take_records(storage);
	int count = err ? 0 : epoll_wait(storage->epoll, events, 64, 0);

	for (int i = 0; i < count; i++)
		if (events[i].data.u64)
			end_process(storage, &storage->processes[events[i].data.u64 - 1]);
	return err;
}

/* Lines. */

// What calls that belong to no file of their own have: the stats behind the table.
static bool belongs_to(const struct stall_storage *storage, const struct process *process,
		       const struct stall_wait_key *key)
{
	return key->tgid == (uint32_t)process->target.pid ||
	       (!key->tgid && storage->process_count == 1);
}

static struct stall_error *collect_rows(struct stall_storage *storage,
					const struct process *process,
					struct stall_storage_row **ret, size_t *ret_count)
{
	size_t made = stall_bpf_waits_made_count(storage->waits), total, index;
	const volatile struct stall_wait_stat *stats =
		stall_bpf_waits_stats(storage->waits, &total);
	struct stall_storage_row *rows = calloc(made + 1, sizeof(*rows));
	static const struct stall_storage_stat nothing;

	if (!rows)
		return &stall_enomem;
	*ret = rows;
	*ret_count = 0;
	for (size_t i = 0; i < made; i++) {
		if (!stall_bpf_waits_made_stat(storage->waits, i, &index) || !stats[index].used)
			continue;
		struct stall_storage_row *row = &rows[*ret_count];
		row->key = *(const struct stall_wait_key *)&stats[index].key;
		stall_bpf_waits_storage(storage->waits, index, &row->sums);
		if (!belongs_to(storage, process, &row->key) ||
		    !memcmp(&row->sums, &nothing, sizeof(nothing)))
			continue;
		row->file =
			storage->files.files[index].record ? &storage->files.files[index] : NULL;
		(*ret_count)++;
	}
	return NULL;
}

static struct stall_process_io io_since(const struct process *process)
{
	const struct stall_process_io *first = &process->first, *last = &process->last;

	return (struct stall_process_io){
		.wchar = last->wchar - first->wchar,
		.syscw = last->syscw - first->syscw,
		.write_bytes = last->write_bytes - first->write_bytes,
		.cancelled_write_bytes = last->cancelled_write_bytes - first->cancelled_write_bytes,
	};
}

static struct stall_error *write_line(struct stall_storage *storage, struct process *process,
				      bool final, struct stall_json *json)
{
	_cleanup_free_ struct stall_storage_row *rows = NULL;
	struct stall_storage_line line = {
		.pid = process->target.pid,
		.length_ns = stall_clock_ns(CLOCK_MONOTONIC) - process->start_ns,
		.final = final,
		.ended = process->ended,
		.charged_why_not = stall_bpf_waits_dirty_why_not(storage->waits),
	};
	uint64_t lost[STALL_LOST_CAUSES];
	struct stall_error *err = NULL;

	if (!process->ended)
		err = stall_storage_files_update(&storage->files, &process->target);
	if (!err)
		err = collect_rows(storage, process, &rows, &line.row_count);
	if (err)
		return err;
	struct stall_process_io io = io_since(process);
	stall_bpf_waits_lost(storage->waits, lost);
	line.rows = rows;
	line.io = process->has_io ? &io : NULL;
	line.lost = lost;
	line.programs = stall_bpf_waits_programs(storage->waits, &line.program_count);
	err = stall_storage_line_write(&line, json);
	if (!err)
		stall_json_newline(json);
	process->over = final;
	return err;
}

struct stall_error *stall_storage_write_ended(struct stall_storage *storage,
					      struct stall_json *json)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < storage->process_count; i++)
		if (storage->processes[i].ended && !storage->processes[i].over)
			err = write_line(storage, &storage->processes[i], true, json);
	return err;
}

struct stall_error *stall_storage_write(struct stall_storage *storage, bool final,
					struct stall_json *json)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; final && i < storage->process_count; i++)
		if (!storage->processes[i].ended)
			read_io(&storage->processes[i]);
	if (final)
		stall_bpf_waits_detach(storage->waits);
	// The names of the files that were used last.
	err = take_records(storage);
	for (size_t i = 0; !err && i < storage->process_count; i++) {
		struct process *process = &storage->processes[i];

		if (process->over)
			continue;
		if (!final && !process->ended)
			read_io(process);
		err = write_line(storage, process, final || process->ended, json);
	}
	return err;
}

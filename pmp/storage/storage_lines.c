// SPDX-License-Identifier: Apache-2.0
#include "storage/storage_lines.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file_class.h"
#include "ebpf/wait_kinds.h"
#include "waits/wait_programs.h"

#define KERNEL_MINOR_BITS 20 // include/linux/kdev_t.h

// What the kernel charges for asynchronous writes with O_DIRECT: all that they wrote, unless the file
// system wrote it to the cache after all.
static uint64_t charged_bytes(const struct stall_storage_stat *sums)
{
	uint64_t direct = sums->async_direct_bytes, dirtied = sums->async_dirtied_bytes;

	if (sums->flags & STALL_STORAGE_UNCHARGED)
		return 0;
	return sums->charged_bytes + (direct > dirtied ? direct - dirtied : 0);
}

static int compare_rows(const void *a, const void *b)
{
	const struct stall_storage_row *one = a, *two = b;
	uint64_t first = charged_bytes(&one->sums), second = charged_bytes(&two->sums);

	if (first == second) {
		first = one->sums.requested_bytes;
		second = two->sums.requested_bytes;
	}
	if (first == second) {
		first = two->key.id;
		second = one->key.id;
	}
	return first > second ? -1 : first < second;
}

// 17 digits are all of a double.
static void write_wide(struct stall_json *json, const char *key, const uint64_t sum[2])
{
	char text[40];

	if (!sum[1]) {
		stall_json_member_uint(json, key, sum[0]);
		return;
	}
	int length =
		snprintf(text, sizeof(text), "%.17g", (double)sum[1] * 0x1p64 + (double)sum[0]);
	stall_json_key(json, key);
	stall_json_raw(json, text, length);
}

static void write_charged(const struct stall_storage_line *line,
			  const struct stall_storage_stat *sums, struct stall_json *json)
{
	if (line->charged_why_not) {
		stall_json_key(json, "charged_bytes");
		stall_json_null(json);
		stall_json_key(json, "mapped_bytes");
		stall_json_null(json);
		return;
	}
	stall_json_member_uint(json, "charged_bytes", charged_bytes(sums));
	stall_json_member_uint(json, "mapped_bytes", sums->mapped_bytes);
}

static void write_syncs(const struct stall_storage_stat *sums, struct stall_json *json)
{
	stall_json_member_uint(json, "syncs", sums->fsyncs + sums->fdatasyncs + sums->dsync_writes);
	stall_json_member_uint(json, "sync_ns", sums->sum_t);
	stall_json_member_uint(json, "sync_max_ns", sums->sync_max_ns);
	stall_json_member_uint(json, "sum_n", sums->sum_n);
	write_wide(json, "sum_nn", (const uint64_t *)sums->sum_nn);
	write_wide(json, "sum_nt", (const uint64_t *)sums->sum_nt);
	write_wide(json, "sum_tt", (const uint64_t *)sums->sum_tt);
	stall_json_member_uint(json, "fsyncs", sums->fsyncs);
	stall_json_member_uint(json, "fdatasyncs", sums->fdatasyncs);
	stall_json_member_uint(json, "dsync_writes", sums->dsync_writes);
	stall_json_member_uint(json, "sync_errors", sums->sync_errors);
	stall_json_member_uint(json, "range_syncs", sums->other_syncs);
	stall_json_member_uint(json, "range_sync_ns", sums->other_sync_ns);
}

// Pages that no file has: of the block device under a file system, of a tree of btrfs.
static bool is_metadata(const struct stall_storage_file *file)
{
	return file && file->record && file->record->fd < 0 && !file->record->name_count;
}

static void write_row(const struct stall_storage_line *line, const struct stall_storage_row *row,
		      struct stall_json *json)
{
	const struct stall_storage_stat *sums = &row->sums;
	const char *path = row->file ? row->file->path : NULL;
	bool deleted = row->file && row->file->deleted;
	char dev[32];

	snprintf(dev, sizeof(dev), "%u:%u", (unsigned int)(row->key.id2 >> 32 >> KERNEL_MINOR_BITS),
		 (unsigned int)(row->key.id2 >> 32 & ((1U << KERNEL_MINOR_BITS) - 1)));
	stall_json_open(json, '{');
	stall_json_member_string(json, "path", path);
	stall_json_member_string(json, "class",
				 stall_file_class_name(path ? stall_file_class(path, deleted)
							    : STALL_FILE_OTHER));
	stall_json_member_string(json, "dev", dev);
	stall_json_member_uint(json, "ino", row->key.id);
	stall_json_member_bool(json, "deleted", deleted);
	stall_json_member_bool(json, "metadata", is_metadata(row->file));
	stall_json_member_bool(json, "direct", sums->flags & STALL_STORAGE_DIRECT);
	stall_json_member_bool(json, "dsync", sums->flags & STALL_STORAGE_DSYNC);
	stall_json_member_uint(json, "requests", sums->requests);
	stall_json_member_uint(json, "requested_bytes", sums->requested_bytes);
	stall_json_member_uint(json, "write_ns", sums->write_ns);
	stall_json_member_uint(json, "direct_bytes", sums->direct_bytes);
	write_charged(line, sums, json);
	write_syncs(sums, json);
	stall_json_close(json, '}');
}

static void write_files(const struct stall_storage_line *line, struct stall_json *json)
{
	stall_json_key(json, "files");
	stall_json_open(json, '[');
	for (size_t i = 0; i < line->row_count; i++)
		if (line->rows[i].key.kind == STALL_WAIT_WRITE)
			write_row(line, &line->rows[i], json);
	stall_json_close(json, ']');
}

static void write_other_syncs(const struct stall_storage_line *line, struct stall_json *json)
{
	struct stall_storage_stat msync = {}, syncfs = {};

	for (size_t i = 0; i < line->row_count; i++) {
		if (line->rows[i].key.kind == STALL_WAIT_MSYNC)
			msync = line->rows[i].sums;
		else if (line->rows[i].key.kind == STALL_WAIT_SYNCFS)
			syncfs = line->rows[i].sums;
	}
	stall_json_key(json, "other_syncs");
	stall_json_open(json, '{');
	stall_json_member_uint(json, "msyncs", msync.other_syncs);
	stall_json_member_uint(json, "msync_ns", msync.other_sync_ns);
	stall_json_member_uint(json, "syncfs", syncfs.other_syncs);
	stall_json_member_uint(json, "syncfs_ns", syncfs.other_sync_ns);
	stall_json_close(json, '}');
}

static void write_io(const struct stall_process_io *io, struct stall_json *json)
{
	stall_json_key(json, "io");
	if (!io) {
		stall_json_null(json);
		return;
	}
	stall_json_open(json, '{');
	stall_json_member_uint(json, "wchar", io->wchar);
	stall_json_member_uint(json, "syscw", io->syscw);
	stall_json_member_uint(json, "write_bytes", io->write_bytes);
	stall_json_member_uint(json, "cancelled_write_bytes", io->cancelled_write_bytes);
	stall_json_close(json, '}');
}

static void write_lost(const uint64_t *lost, struct stall_json *json)
{
	stall_json_key(json, "lost");
	stall_json_open(json, '{');
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		stall_json_member_uint(json, stall_wait_lost_name(i), lost[i]);
	stall_json_close(json, '}');
}

struct stall_error *stall_storage_line_write(struct stall_storage_line *line,
					     struct stall_json *json)
{
	char seconds[32];
	int length = snprintf(seconds, sizeof(seconds), "%.3f", (double)line->length_ns / 1e9);

	if (line->row_count)
		qsort(line->rows, line->row_count, sizeof(*line->rows), compare_rows);
	stall_json_open(json, '{');
	stall_json_member_string(json, "schema", "stallscope.storage-files/1");
	stall_json_member_int(json, "pid", line->pid);
	stall_json_key(json, "seconds");
	stall_json_raw(json, seconds, length);
	stall_json_member_bool(json, "final", line->final);
	stall_json_member_bool(json, "ended", line->ended);
	write_files(line, json);
	write_other_syncs(line, json);
	stall_json_member_string(json, "charged_why_not", line->charged_why_not);
	write_io(line->io, json);
	write_lost(line->lost, json);
	if (line->program_count)
		stall_wait_programs_write(line->programs, line->program_count, json);
	stall_json_close(json, '}');
	return json->failed ? &stall_enomem : NULL;
}

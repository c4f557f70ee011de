// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cache/cache_plan.h"
#include "proc/proc_file.h"

// linux/magic.h of older systems lacks some.
#define XFS_MAGIC 0x58465342
#define ZFS_MAGIC 0x2fc12fc1
#define CIFS_MAGIC 0xff534d42
#define SMB2_MAGIC 0xfe534d42
#define BCACHEFS_MAGIC 0xca451a4e

static const struct {
	uint64_t magic;
	const char *name;
} filesystems[] = {
	{EXT4_SUPER_MAGIC, "ext4"},
	{XFS_MAGIC, "xfs"},
	{BTRFS_SUPER_MAGIC, "btrfs"},
	{TMPFS_MAGIC, "tmpfs"},
	{RAMFS_MAGIC, "ramfs"},
	{HUGETLBFS_MAGIC, "hugetlbfs"},
	{OVERLAYFS_SUPER_MAGIC, "overlay"},
	{NFS_SUPER_MAGIC, "nfs"},
	{F2FS_SUPER_MAGIC, "f2fs"},
	{ZFS_MAGIC, "zfs"},
	{FUSE_SUPER_MAGIC, "fuse"},
	{CIFS_MAGIC, "cifs"},
	{SMB2_MAGIC, "smb"},
	{BCACHEFS_MAGIC, "bcachefs"},
};

static void write_filesystem(struct stall_json *json, uint64_t magic)
{
	for (size_t i = 0; i < sizeof(filesystems) / sizeof(filesystems[0]); i++) {
		if (filesystems[i].magic == magic) {
			stall_json_member_string(json, "filesystem", filesystems[i].name);
			return;
		}
	}
	stall_json_member_hex(json, "filesystem", magic);
}

static void write_pages(struct stall_json *json, const char *key, bool is_known, uint64_t pages)
{
	if (is_known) {
		stall_json_member_uint(json, key, pages * stall_cache_page_size());
	} else {
		stall_json_key(json, key);
		stall_json_null(json);
	}
}

static void write_uncache(struct stall_json *json, const struct stall_cache_file *file)
{
	stall_json_key(json, "uncache");
	stall_json_open(json, '{');
	stall_json_member_string(json, "reason", stall_cache_reason_name(file->reason));
	write_pages(json, "clean_bytes", true, file->clean);
	write_pages(json, "unclean_bytes", true, file->unclean);
	if (file->dropped)
		write_pages(json, "freed_bytes", true, file->freed);
	if (file->recounted)
		write_pages(json, "returned_bytes", true, file->returned);
	stall_json_close(json, '}');
}

static void write_file(struct stall_json *json, const struct stall_cache_result *result,
		       const struct stall_cache_file *file)
{
	bool is_known = !file->errnum || file->dropped;
	bool has_all = is_known && file->method == STALL_CACHE_CACHESTAT;
	const struct stall_cache_counts *counts = &file->counts;

	stall_json_open(json, '{');
	stall_json_member_string(json, "path", file->path);
	stall_json_member_string(json, "class", stall_file_class_name(file->class));
	stall_json_member_uint(json, "size", file->size);
	stall_json_member_uint(json, "allocated_bytes", file->allocated);
	write_pages(json, "cached_bytes", is_known, counts->cached);
	write_pages(json, "dirty_bytes", has_all, counts->dirty);
	write_pages(json, "writeback_bytes", has_all, counts->writeback);
	write_pages(json, "evicted_bytes", has_all, counts->evicted);
	write_pages(json, "recently_evicted_bytes", has_all, counts->recently_evicted);
	stall_json_member_uint(json, "readers", file->readers);
	stall_json_member_uint(json, "writers", file->writers);
	stall_json_member_bool(json, "deleted", file->deleted);
	write_filesystem(json, file->filesystem);
	stall_json_member_bool(json, "memory", stall_cache_is_memory(file));
	stall_json_member_string(json, "method", stall_cache_method_name(file->method));
	stall_json_member_string(json, "error", file->errnum ? strerror(file->errnum) : NULL);
	if (result->uncache && file->reason != STALL_CACHE_OTHER_CLASS)
		write_uncache(json, file);
	stall_json_close(json, '}');
}

static bool read_field(const char *text, const char *name, uint64_t *ret)
{
	const char *line = strstr(text, name);

	return line && sscanf(line + strlen(name), " %" SCNu64, ret) == 1;
}

// The counters that the kernel keeps of a process: reading them walks over none of its memory, and
// takes no lock of it (unlike smaps_rollup).
static void write_process(struct stall_json *json, const struct stall_target *target)
{
	static const struct {
		const char *field, *key;
	} fields[] = {
		{"\nVmRSS:", "rss_bytes"},	     {"\nRssAnon:", "anonymous_bytes"},
		{"\nRssFile:", "mapped_file_bytes"}, {"\nRssShmem:", "shared_memory_bytes"},
		{"\nVmSwap:", "swap_bytes"},
	};
	char text[8192];

	stall_proc_read(target, "status", text, sizeof(text));
	stall_json_open(json, '{');
	stall_json_member_int(json, "pid", target->pid);
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		uint64_t kilobytes;
		stall_json_key(json, fields[i].key);
		if (read_field(text, fields[i].field, &kilobytes))
			stall_json_uint(json, kilobytes * 1024);
		else
			stall_json_null(json);
	}
	stall_json_close(json, '}');
}

static void write_reads(struct stall_json *json, const struct stall_cache_reads *reads)
{
	stall_json_key(json, "reads");
	if (!reads->seconds_ns) {
		stall_json_null(json);
		return;
	}
	stall_json_open(json, '{');
	stall_json_member_ms(json, "elapsed_ms", reads->seconds_ns);
	if (reads->is_known) {
		stall_json_member_uint(json, "before_bytes", reads->before);
		stall_json_member_uint(json, "after_bytes", reads->after);
	}
	stall_json_close(json, '}');
}

static void write_folders(struct stall_json *json, const struct stall_cache_scan *scan)
{
	stall_json_key(json, "folders");
	stall_json_open(json, '[');
	for (size_t i = 0; i < scan->folder_count; i++) {
		if (scan->folders[i].depth)
			continue;
		stall_json_open(json, '{');
		stall_json_member_string(json, "path", scan->folders[i].path);
		stall_json_member_bool(json, "all", !scan->folders[i].flat);
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
	stall_json_key(json, "notes");
	stall_json_open(json, '[');
	for (const struct stall_cache_note *note = scan->notes; note; note = note->next)
		stall_json_string(json, note->text);
	stall_json_close(json, ']');
}

void stall_cache_write(struct stall_json *json, const struct stall_cache_result *result)
{
	const struct stall_cache_scan *scan = result->scan;

	stall_json_open(json, '{');
	stall_json_member_string(json, "schema", "stallscope.probe-cache/1");
	stall_json_member_string(json, "method", stall_cache_method_name(scan->method));
	stall_json_member_uint(json, "page_bytes", stall_cache_page_size());
	stall_json_member_ms(json, "elapsed_ms", result->elapsed_ns);
	stall_json_member_bool(json, "limit_reached", scan->limit_reached);
	stall_json_member_bool(json, "late", scan->late);
	stall_json_member_uint(json, "special_files", scan->special);
	stall_json_member_uint(json, "unreadable", scan->unreadable);
	stall_json_member_uint(json, "long_paths", scan->long_paths);
	stall_json_key(json, "processes");
	stall_json_open(json, '[');
	for (size_t i = 0; i < scan->target_count; i++)
		write_process(json, &scan->targets[i]);
	stall_json_close(json, ']');
	write_folders(json, scan);
	stall_json_member_bool(json, "dropped", result->dropped);
	write_reads(json, &result->reads);
	stall_json_key(json, "files");
	stall_json_open(json, '[');
	for (size_t i = 0; i < scan->count; i++)
		write_file(json, result, &scan->files[i]);
	stall_json_close(json, ']');
	stall_json_close(json, '}');
	stall_json_newline(json);
}

bool stall_cache_is_partial(const struct stall_cache_scan *scan)
{
	if (scan->limit_reached || scan->late || scan->unreadable || scan->long_paths)
		return true;
	for (size_t i = 0; i < scan->count; i++)
		if (scan->files[i].errnum && !stall_cache_is_memory(&scan->files[i]))
			return true;
	return false;
}

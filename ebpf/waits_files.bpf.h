/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which file a call is about. Part of waits.bpf.c. */
#ifndef STALL_WAITS_FILES_BPF_H
#define STALL_WAITS_FILES_BPF_H

#include "ebpf/waits_records.bpf.h"
#include "ebpf/waits_stats.bpf.h"

#define S_IFMT 0170000 // include/uapi/linux/stat.h
#define S_IFREG 0100000

// A program of a tracepoint does not run twice at once on a CPU, so each has a buffer for each CPU.
enum file_user {
	FILE_OF_ENTER,
	FILE_OF_ADOPTION,
	FILE_OF_SUBMIT,
	FILE_OF_COMPLETE,
	FILE_USERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FILE_USERS);
	__type(key, __u32);
	__type(value, struct stall_wait_file);
} file_buffers SEC(".maps");

// The thread's own descriptors: the table and the file may go meanwhile, where another thread closes
// them, so that these are reads that can fail.
static __always_inline struct file *file_of(struct task_struct *task, __s32 fd)
{
	struct fdtable *table = task->files->fdt;
	struct file *file = NULL;

	if (fd < 0 || (__u32)fd >= table->max_fds)
		return NULL;
	bpf_probe_read_kernel(&file, sizeof(file), table->fd + fd);
	return file;
}

static __always_inline bool is_regular(struct inode *inode)
{
	return (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFREG;
}

static __always_inline void set_file_key(struct stall_wait_key *key, struct inode *inode)
{
	key->id = BPF_CORE_READ(inode, i_ino);
	key->id2 =
		(__u64)BPF_CORE_READ(inode, i_sb, s_dev) << 32 | BPF_CORE_READ(inode, i_generation);
}

static __always_inline struct stall_wait_file *begin_file(__u32 user,
							  const struct stall_wait_slot *slot)
{
	struct stall_wait_file *out = bpf_map_lookup_elem(&file_buffers, &user);

	if (!out)
		return NULL;
	__builtin_memset(out, 0, sizeof(*out));
	out->magic = STALL_BPF_MAGIC;
	out->type = STALL_RECORD_FILE;
	out->tid = slot->tid;
	out->tgid = slot->tgid;
	return out;
}

static __always_inline void name_file(struct stall_wait_file *out, struct file *file)
{
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);

	for (__u32 i = 0; i < STALL_FILE_NAMES; i++) {
		struct dentry *parent = BPF_CORE_READ(dentry, d_parent);

		if (!dentry || parent == dentry) // the root of its file system
			break;
		if (bpf_probe_read_kernel_str(out->names[i], STALL_FILE_NAME,
					      BPF_CORE_READ(dentry, d_name.name)) < 0) {
			count_lost(STALL_LOST_PATH_READ);
			break;
		}
		out->name_count = i + 1;
		dentry = parent;
	}
}

VERIFIED_ONCE int tell_file_at(__u32 user, struct stall_wait_slot *slot,
			       struct stall_wait_stat *stat, __u64 address, __s32 fd)
{
	struct file *file = (void *)address;

	if (!slot || !stat)
		return 0;
	struct stall_wait_file *out = begin_file(user, slot);
	if (!out)
		return 0;
	out->key = stat->key;
	out->fd = fd;
	out->mode = BPF_CORE_READ(file, f_inode, i_mode);
	name_file(out, file);
	stat->told = send_bytes(out, sizeof(*out));
	return 0;
}

// Says once for each key which file it is.
static __always_inline void tell_file(__u32 user, struct stall_wait_slot *slot,
				      struct stall_wait_stat *stat, struct file *file, __s32 fd)
{
	tell_file_at(user, slot, stat, (__u64)file, fd);
}

static __always_inline __u64 hash_path(const struct stall_wait_file *file)
{
	const __u64 *words = (const void *)file->path;
	__u64 hash = 0xcbf29ce484222325;

	for (__u32 i = 0; i < STALL_PATH / sizeof(*words) && words[i]; i++)
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15 + (hash >> 29);
	return hash;
}

// The stat of a call that names its file by path, which it tells too.
VERIFIED_ONCE __u32 take_path_stat(__u32 user, struct stall_wait_slot *slot,
				   struct stall_wait_key *key, __u64 path, __s32 directory)
{
	__u32 index;

	if (!slot || !key)
		return 0;
	struct stall_wait_file *out = begin_file(user, slot);
	if (!out)
		return 0;
	if (bpf_probe_read_user_str(out->path, sizeof(out->path), (void *)path) < 0)
		count_lost(STALL_LOST_PATH_READ);
	key->id = hash_path(out);
	index = take_stat(key);
	struct stall_wait_stat *stat = stat_at(index);
	if (stat && !stat->told) {
		out->key = stat->key;
		out->fd = directory;
		stat->told = send_bytes(out, sizeof(*out));
	}
	return index;
}

#endif

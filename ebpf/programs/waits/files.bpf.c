// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ebpf/programs/waits/files.bpf.h"

#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/stats.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FILE_USERS);
	__type(key, __u32);
	__type(value, struct stall_wait_file);
} file_buffers SEC(".maps");

static __always_inline struct stall_wait_file *init_file(__u32 user, __s32 tid, __s32 tgid)
{
	struct stall_wait_file *out = bpf_map_lookup_elem(&file_buffers, &user);

	if (!out)
		return NULL;
	__builtin_memset(out, 0, sizeof(*out));
	out->magic = STALL_BPF_MAGIC;
	out->type = STALL_RECORD_FILE;
	out->tid = tid;
	out->tgid = tgid;
	return out;
}

static __always_inline void name_file(struct stall_wait_file *out, struct dentry *dentry)
{
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

VERIFIED_ONCE int emit_file(__u32 user, struct stall_wait_slot *slot, struct stall_wait_stat *stat,
			    __u64 address, __s32 fd)
{
	struct file *file = (void *)address;

	if (!slot || !stat)
		return 0;
	struct stall_wait_file *out = init_file(user, slot->tid, slot->tgid);
	if (!out)
		return 0;
	out->key = stat->key;
	out->fd = fd;
	out->mode = BPF_CORE_READ(file, f_inode, i_mode);
	name_file(out, BPF_CORE_READ(file, f_path.dentry));
	stat->announced = emit_bytes(out, sizeof(*out));
	return 0;
}

// One of its names; NULL: it has none.
static __always_inline struct dentry *dentry_of(struct inode *inode)
{
	void *alias = BPF_CORE_READ(inode, i_dentry.first);

	if (!alias || !bpf_core_field_exists(((struct dentry *)0)->d_u.d_alias))
		return NULL;
	return alias - bpf_core_field_offset(struct dentry, d_u.d_alias);
}

VERIFIED_ONCE int emit_inode(__u32 user, __s32 tgid, struct stall_wait_stat *stat, __u64 address)
{
	struct inode *inode = (void *)address;

	if (!stat)
		return 0;
	struct stall_wait_file *out = init_file(user, tgid, tgid);
	if (!out)
		return 0;
	out->key = stat->key;
	out->fd = -1;
	out->mode = BPF_CORE_READ(inode, i_mode);
	name_file(out, dentry_of(inode));
	stat->announced = emit_bytes(out, sizeof(*out));
	return 0;
}

static __always_inline __u64 hash_path(const struct stall_wait_file *file)
{
	const __u64 *words = (const void *)file->path;
	__u64 hash = 0xcbf29ce484222325;

	for (__u32 i = 0; i < STALL_PATH / sizeof(*words) && words[i]; i++)
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15 + (hash >> 29);
	return hash;
}

VERIFIED_ONCE __u32 get_or_create_path_stat(__u32 user, struct stall_wait_slot *slot,
					    struct stall_wait_key *key, __u64 path, __s32 directory)
{
	__u32 index;

	if (!slot || !key)
		return 0;
	struct stall_wait_file *out = init_file(user, slot->tid, slot->tgid);
	if (!out)
		return 0;
	if (bpf_probe_read_user_str(out->path, sizeof(out->path), (void *)path) < 0)
		count_lost(STALL_LOST_PATH_READ);
	key->id = hash_path(out);
	index = get_or_create_stat(key);
	struct stall_wait_stat *stat = stat_at(index);
	if (stat && !stat->announced) {
		out->key = stat->key;
		out->fd = directory;
		stat->announced = emit_bytes(out, sizeof(*out));
	}
	return index;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The file of a call. Functions that every read and write runs through are inline. */
#ifndef STALL_WAITS_FILES_BPF_H
#define STALL_WAITS_FILES_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

#define S_IFMT 0170000 // include/uapi/linux/stat.h
#define S_IFREG 0100000

// A tracepoint's program does not run twice at once on a CPU, so each program has one buffer per
// CPU.
enum file_user {
	FILE_OF_ENTER,
	FILE_OF_ADOPTION,
	FILE_OF_SUBMIT,
	FILE_OF_COMPLETE,
	FILE_OF_DIRTY,
	FILE_USERS,
};

// Reports once for each key which file it is. `file`: the address of the kernel's struct.
VERIFIED_ONCE int emit_file(__u32 user, struct stall_wait_slot *slot, struct stall_wait_stat *stat,
			    __u64 file, __s32 fd);
// The same of a file of which only the address of its inode is known.
VERIFIED_ONCE int emit_inode(__u32 user, __s32 tgid, struct stall_wait_stat *stat, __u64 inode);
// The stat of a call that names its file by path (an address in the program), which it reports too.
VERIFIED_ONCE __u32 get_or_create_path_stat(__u32 user, struct stall_wait_slot *slot,
					    struct stall_wait_key *key, __u64 path,
					    __s32 directory);

// The thread's own descriptors. Another thread may close them meanwhile, so these are reads that
// can fail.
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

// A write beyond the end of its file makes the file longer.
static __always_inline bool is_beyond_end(struct inode *inode, __u64 end)
{
	return end > (__u64)BPF_CORE_READ(inode, i_size);
}

static __always_inline void set_file_key(struct stall_wait_key *key, struct inode *inode)
{
	key->id = BPF_CORE_READ(inode, i_ino);
	key->id2 =
		(__u64)BPF_CORE_READ(inode, i_sb, s_dev) << 32 | BPF_CORE_READ(inode, i_generation);
}

#endif

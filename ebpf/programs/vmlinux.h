/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The few kernel types that the programs read, relocated by name when they are loaded (CO-RE): only
 * the names and the kinds of the members matter, not their order, and others may be left out.
 */
#ifndef STALL_VMLINUX_H
#define STALL_VMLINUX_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

/* include/uapi/linux/bpf.h: these numbers are ABI. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_STACK = 23,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_F_MMAPABLE = 1U << 10,
	BPF_RB_NO_WAKEUP = 1U << 0,
	BPF_RB_FORCE_WAKEUP = 1U << 1,
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_RING_SIZE = 1,
};

/* Known to the kernel by its name. */
struct bpf_timer {
	__u64 : 64;
	__u64 : 64;
} __attribute__((aligned(8)));

/* x86-64: pushed by the entry code in this order, unchanged since 2.6 (arch/x86/include/asm/ptrace.h).
 * cs and ss share their words with FRED's bits from 6.9 on: only the low 16 bits are the selector. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next;
};

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct thread_info {
	__u32 status;
};

struct thread_struct {
	unsigned long fsbase;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live; /* threads that have not begun to exit */
	struct list_head thread_head;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct backing_dev_info {
	unsigned int capabilities;
};

struct super_block {
	unsigned int s_dev;
	unsigned long s_flags, s_magic;
	struct backing_dev_info *s_bdi;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	long long i_size;
	unsigned int i_generation;
	unsigned int i_flags;
	struct hlist_head i_dentry;
};

struct address_space {
	struct inode *host;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct inode *d_inode;
	struct dentry *d_parent;
	struct qstr d_name;
	union {
		struct hlist_node d_alias;
	} d_u;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct address_space *f_mapping;
	unsigned int f_flags;
	struct path f_path;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct mm_struct {
	unsigned long start_stack, start_brk;
};

struct sched_info {
	unsigned long long last_arrival;
};

struct task_io_accounting {
	__u64 write_bytes;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	struct sched_entity se;
	struct mm_struct *mm;
	int exit_state;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct list_head thread_node;
	struct sched_info sched_info;
	__u64 start_time;
	unsigned long nvcsw, nivcsw;
	char comm[16];
	struct files_struct *files;
	struct signal_struct *signal;
	__u64 self_exec_id;
	struct task_io_accounting ioac;
	struct thread_struct thread;
};

/* Before 5.14 (2f064a59a11f), __state was a signed `state`. */
struct task_struct___before_5_14 {
	volatile long state;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id, seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#endif

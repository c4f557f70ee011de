// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#include "ebpf/programs/waits/storage.bpf.h"

#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/slots.bpf.h"
#include "ebpf/programs/waits/stats.bpf.h"
#include "ebpf/programs/waits/wait.bpf.h"

#define S_IFBLK 0060000 // include/uapi/linux/stat.h
#define O_DSYNC 0010000 // include/uapi/asm-generic/fcntl.h; O_SYNC has this bit, too
#define O_DIRECT 0040000
#define RWF_DSYNC 2 // include/uapi/linux/fs.h
#define RWF_SYNC 4
#define S_SYNC 1			 // include/linux/fs.h
#define SB_SYNCHRONOUS 16		 // include/linux/fs.h
#define OVERLAYFS_SUPER_MAGIC 0x794c7630 // include/uapi/linux/magic.h
#define BDI_CAP_WRITEBACK 1		 // include/linux/backing-dev.h
#define PAGE_BYTES 4096
#define MAX_ORDER 20 // of a folio
#define SYS_pwritev2 328

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* The size of a folio of several pages, in the forms that kernels have had it. */
struct folio {
	unsigned int _nr_pages; // 6.15
};

struct folio___6_6 {
	unsigned long _flags_1; // its low byte is the order
};

struct folio___5_18 {
	unsigned char _folio_order;
};

/* Of the module overlay, where it is loaded. */
struct ovl_inode {
	struct inode vfs_inode;
	struct dentry *__upperdentry;
};

#pragma clang attribute pop

enum pageflags {
	PG_head = 6,
};

static __always_inline struct stall_storage_stat *storage_at(__u32 index)
{
	return bpf_map_lookup_elem(&storage, &index);
}

static __always_inline void add(__u64 *sum, __u64 number)
{
	__sync_fetch_and_add(sum, number);
}

// All 128 bits. A reader may see the low half before its carry.
static __always_inline void add_product(__u64 sum[2], __u64 a, __u64 b)
{
	__u64 a0 = (__u32)a, a1 = a >> 32, b0 = (__u32)b, b1 = b >> 32;
	__u64 middle = a1 * b0 + (a0 * b0 >> 32);
	__u64 other = a0 * b1 + (__u32)middle;
	__u64 low = a * b, high = a1 * b1 + (middle >> 32) + (other >> 32);
	__u64 before = __sync_fetch_and_add(&sum[0], low);

	if (before + low < low)
		high++;
	if (high)
		add(&sum[1], high);
}

// A sync of n bytes took t ns.
VERIFIED_ONCE int count_sync(struct stall_storage_stat *found, __u64 n, __u64 t)
{
	if (!found)
		return 0;
	add(&found->sum_n, n);
	add(&found->sum_t, t);
	add_product(found->sum_nn, n, n);
	add_product(found->sum_nt, n, t);
	add_product(found->sum_tt, t, t);
	if (found->sync_max_ns < t)
		raise_maximum(&found->sync_max_ns, t);
	return 0;
}

// What does not change while it exists, or rarely.
static __always_inline __u64 flags_of_inode(struct inode *inode)
{
	bool is_device = (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFBLK;
	__u64 flags = 0;

	if (BPF_CORE_READ(inode, i_flags) & S_SYNC ||
	    BPF_CORE_READ(inode, i_sb, s_flags) & SB_SYNCHRONOUS)
		flags |= STALL_STORAGE_ALWAYS_SYNC;
	if (!is_device && !(BPF_CORE_READ(inode, i_sb, s_bdi, capabilities) & BDI_CAP_WRITEBACK))
		flags |= STALL_STORAGE_UNCHARGED;
	return flags;
}

// The inode whose pages are written: of overlayfs, that of the file below.
static __always_inline struct inode *inode_of(struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_mapping, host), *upper;

	if (!bpf_core_type_exists(struct ovl_inode) ||
	    BPF_CORE_READ(inode, i_sb, s_magic) != OVERLAYFS_SUPER_MAGIC)
		return inode;
	struct ovl_inode *overlay =
		(void *)inode - bpf_core_field_offset(struct ovl_inode, vfs_inode);
	upper = BPF_CORE_READ(overlay, __upperdentry, d_inode);
	return upper ? upper : inode;
}

static __always_inline bool has_data(struct inode *inode)
{
	__u32 type = BPF_CORE_READ(inode, i_mode) & S_IFMT;

	return type == S_IFREG || type == S_IFBLK;
}

static __always_inline __u32 stat_of_inode(__s32 tgid, struct inode *inode)
{
	struct stall_wait_key key = {.tgid = tgid, .kind = STALL_WAIT_WRITE};

	set_file_key(&key, inode);
	return get_or_create_stat(&key);
}

// The index of the file's stat; sets of->flags.
VERIFIED_ONCE __u32 get_or_create_storage(struct stall_wait_slot *slot, struct storage_file *of)
{
	if (!slot || !of)
		return 0;
	struct file *file = (void *)of->file;
	struct inode *inode = (void *)of->inode;
	__u32 index = stat_of_inode(slot->tgid, inode), flags = BPF_CORE_READ(file, f_flags);
	struct stall_wait_stat *stat = stat_at(index);
	struct stall_storage_stat *found = storage_at(index);

	if (!stat || !found)
		return index;
	if (!stat->announced) {
		found->flags |= flags_of_inode(inode);
		emit_file(of->user, slot, stat, of->file, of->fd);
	}
	of->flags = flags & O_DIRECT ? STALL_SLOT_DIRECT : 0;
	if (flags & O_DSYNC || of->how & (RWF_DSYNC | RWF_SYNC) ||
	    found->flags & STALL_STORAGE_ALWAYS_SYNC)
		of->flags |= STALL_SLOT_DSYNC;
	return index;
}

static __always_inline bool is_sync(__u32 kind)
{
	return kind == STALL_WAIT_FSYNC || kind == STALL_WAIT_FDATASYNC;
}

// The bytes that a sync is about to make safe.
static __always_inline __u64 take_unsynced(__u32 index)
{
	struct stall_storage_stat *found = storage_at(index);

	return found ? __sync_lock_test_and_set(&found->unsynced_bytes, 0) : 0;
}

static __always_inline void mark(struct stall_storage_stat *found, __u32 flags)
{
	__u64 marks = (flags & STALL_SLOT_DIRECT ? STALL_STORAGE_DIRECT : 0) |
		      (flags & STALL_SLOT_DSYNC ? STALL_STORAGE_DSYNC : 0);

	if (marks & ~found->flags)
		__sync_fetch_and_or(&found->flags, marks);
}

/* System calls. */

static __always_inline __u64 charged(struct task_struct *task)
{
	return bpf_core_field_exists(task->ioac.write_bytes) ? task->ioac.write_bytes : 0;
}

static __always_inline __u32 flags_of_call(const struct call_args *args)
{
	struct pt_regs *regs = (void *)args->regs;
	unsigned long flags = 0;

	if (args->number == SYS_pwritev2)
		bpf_probe_read_kernel(&flags, sizeof(flags), &regs->r9);
	return flags;
}

VERIFIED_ONCE int begin_storage_call(struct call_args *args)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 index, at;

	if (!args || !is_target(task->tgid) || is_compat(task))
		return 0;
	__u32 kind = args->kind;
	bool of_process = kind == STALL_WAIT_MSYNC || kind == STALL_WAIT_SYNCFS;
	struct file *file = of_process ? NULL : file_of(task, args->di);
	struct inode *inode = file ? inode_of(file) : NULL;
	if (!of_process && (!file || (kind == STALL_WAIT_WRITE && !has_data(inode))))
		return 0;
	struct stall_wait_slot *slot = get_or_create_slot(task, &at);
	if (!slot)
		return 0;
	end_missed_wait(slot);
	struct stall_wait_key key = {.tgid = slot->tgid, .kind = kind};
	struct storage_file of = {.file = (__u64)file,
				  .inode = (__u64)inode,
				  .user = FILE_OF_ENTER,
				  .fd = args->di,
				  .how = flags_of_call(args)};
	index = of_process ? get_or_create_stat(&key) : get_or_create_storage(slot, &of);
	slot->key = key;
	slot->operation = args->number;
	slot->dirtied = 0;
	if (is_sync(kind))
		slot->unsynced = take_unsynced(index);
	else
		slot->charged_before = charged(task);
	begin_wait(slot, args->regs, index);
	slot->flags = of.flags;
	return 0;
}

// What the kernel charges to a write with O_DIRECT: not the pages that it wrote to the cache after
// all, and those of others.
static __always_inline __u64 charged_to_direct(struct stall_wait_slot *slot, __u64 bytes)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (bpf_core_field_exists(task->ioac.write_bytes))
		bytes = charged(task) - slot->charged_before;
	return bytes > slot->dirtied ? bytes - slot->dirtied : 0;
}

static __always_inline void count_write(struct stall_storage_stat *found, __u64 bytes, __u64 ns,
					__u32 flags)
{
	add(&found->requests, 1);
	add(&found->requested_bytes, bytes);
	add(&found->write_ns, ns);
	if (flags)
		mark(found, flags);
	if (flags & STALL_SLOT_DIRECT)
		add(&found->direct_bytes, bytes);
	if (flags & STALL_SLOT_DSYNC) {
		add(&found->dsync_writes, 1);
		count_sync(found, bytes, ns);
	}
}

static __always_inline void end_sync(struct stall_storage_stat *found, __u32 kind, __u64 bytes,
				     __u64 ns, __s64 result)
{
	if (result) {
		add(&found->sync_errors, 1);
		add(&found->unsynced_bytes, bytes);
		return;
	}
	add(kind == STALL_WAIT_FSYNC ? &found->fsyncs : &found->fdatasyncs, 1);
	count_sync(found, bytes, ns);
}

VERIFIED_ONCE int end_storage_call(struct stall_wait_slot *slot, __u64 ns, __s64 result)
{
	if (!slot)
		return 0;
	__u32 kind = slot->key.kind, flags = slot->flags;
	struct stall_storage_stat *found = storage_at(slot->stat);
	if (!found)
		return 0;
	if (is_sync(kind)) {
		end_sync(found, kind, slot->unsynced, ns, result);
	} else if (kind != STALL_WAIT_WRITE) {
		add(&found->other_syncs, 1);
		add(&found->other_sync_ns, ns);
	} else if (result > 0) {
		count_write(found, result, ns, flags);
		if (!flags)
			add(&found->unsynced_bytes, result);
		if (flags & STALL_SLOT_DIRECT)
			add(&found->charged_bytes, charged_to_direct(slot, result));
	}
	return 0;
}

/* Asynchronous requests. */

VERIFIED_ONCE int begin_storage_request(struct async_call *call, struct stall_wait_slot *slot,
					struct storage_file *of)
{
	struct file *file = of ? (void *)of->file : NULL;

	if (!call || !slot || !of || !is_enabled(call->key.kind))
		return 0;
	call->value = of->how;
	if (!file)
		return 1;
	struct inode *inode = inode_of(file);
	if (call->key.kind == STALL_WAIT_WRITE && !has_data(inode))
		return 0;
	of->inode = (__u64)inode;
	__u32 index = get_or_create_storage(slot, of);
	struct stall_storage_stat *found = storage_at(index);
	if (!found)
		return 0;
	set_file_key(&call->key, inode);
	call->flags = of->flags;
	mark(found, of->flags);
	// Of a write and the sync that is linked to it both begin now.
	if (is_sync(call->key.kind))
		call->size = take_unsynced(index);
	else if (call->key.kind == STALL_WAIT_WRITE && !of->flags)
		add(&found->unsynced_bytes, call->size);
	return 1;
}

VERIFIED_ONCE int set_request_file(struct async_call *call, __u64 file)
{
	if (!call)
		return 0;
	__u32 at = call->slot;
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &at);
	struct storage_file of = {.file = file,
				  .user = FILE_OF_COMPLETE,
				  .fd = -1,
				  .how = call->value};
	call->size = 0;
	return slot && file ? begin_storage_request(call, slot, &of) : 0;
}

static __always_inline void end_request_write(struct stall_storage_stat *found,
					      const struct async_call *call, __u64 ns, __s64 result)
{
	__u64 bytes = result > 0 ? result : 0;

	if (bytes)
		count_write(found, bytes, ns, call->flags);
	if (bytes && call->flags & STALL_SLOT_DIRECT)
		add(&found->async_direct_bytes, bytes);
	// It was added when the request began, where it was known.
	if (!call->flags && call->size != bytes)
		add(&found->unsynced_bytes, bytes - call->size);
}

VERIFIED_ONCE int end_storage_request(const struct async_call *call, __u64 ns, __s64 result)
{
	if (!call)
		return 0;
	struct stall_wait_key key = call->key;
	key.kind = STALL_WAIT_WRITE;
	struct stall_storage_stat *found = storage_at(get_or_create_stat(&key));
	if (!found)
		return 0;
	if (is_sync(call->key.kind)) {
		end_sync(found, call->key.kind, call->size, ns, result);
	} else if (call->key.kind == STALL_WAIT_WRITE) {
		end_request_write(found, call, ns, result);
	} else {
		add(&found->other_syncs, 1);
		add(&found->other_sync_ns, ns);
	}
	return 0;
}

/* Pages that become dirty. */

static __always_inline __u64 pages_of(void *folio)
{
	struct folio___6_6 *with_flags = folio;
	struct folio___5_18 *with_order = folio;
	unsigned long flags = 0;
	__u32 order = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return 1;
	if (bpf_core_field_exists(((struct folio *)0)->_nr_pages))
		return BPF_CORE_READ((struct folio *)folio, _nr_pages);
	if (bpf_core_field_exists(with_order->_folio_order))
		order = BPF_CORE_READ(with_order, _folio_order);
	else if (bpf_core_field_exists(with_flags->_flags_1))
		order = BPF_CORE_READ(with_flags, _flags_1) & 0xff;
	return order < MAX_ORDER ? 1ULL << order : 1;
}

static __always_inline bool is_page_fault(struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

	return (long)regs->orig_ax == -1;
}

VERIFIED_ONCE int count_dirty(__u64 address, __u64 bytes, bool is_mapped)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct inode *inode = (void *)address;
	__u32 tgid = task->tgid, at;
	__s32 *pid = bpf_map_lookup_elem(&targets, &tgid);

	if (!pid)
		return 0;
	__u32 index = stat_of_inode(*pid, inode);
	struct stall_wait_stat *stat = stat_at(index);
	struct stall_storage_stat *found = storage_at(index);
	if (!stat || !found)
		return 0;
	if (!stat->announced) {
		found->flags |= flags_of_inode(inode);
		emit_inode(FILE_OF_DIRTY, *pid, stat, address);
	}
	if (found->flags & STALL_STORAGE_UNCHARGED)
		return 0;
	add(&found->charged_bytes, bytes);
	if (is_mapped) {
		add(&found->mapped_bytes, bytes);
		add(&found->unsynced_bytes, bytes);
		return 0;
	}
	struct stall_wait_slot *slot = find_slot(task, &at);
	if (slot && slot->seq & 1 && slot->key.kind == STALL_WAIT_WRITE)
		slot->dirtied += bytes;
	else if (found->flags & STALL_STORAGE_DIRECT)
		add(&found->async_dirtied_bytes, bytes);
	return 0;
}

// Before 5.18 writeback_dirty_page, with the page.
SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(stall_dirty, void *folio, struct address_space *mapping)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!mapping || !is_target(task->tgid))
		return 0;
	// As a number: functions that are verified once take no pointer to a kernel object.
	return count_dirty((__u64)BPF_CORE_READ(mapping, host), pages_of(folio) * PAGE_BYTES,
			   is_page_fault(task));
}

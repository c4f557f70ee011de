/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Asynchronous I/O, from its submission to the moment when its end is known: libaio and io_uring.
 * Part of waits.bpf.c. */
#ifndef STALL_ASYNC_BPF_H
#define STALL_ASYNC_BPF_H

#include "ebpf/waits_files.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kiocb {
	long long ki_pos;
};

/* Three of the shapes that the first part of a request has: its operation tells which. */
struct io_rw {
	struct kiocb kiocb;
	__u32 len;
};

struct io_sync {
	long long len, off;
	int flags;
};

struct filename {
	const char *uptr;
};

struct io_unlink {
	int dfd;
	struct filename *filename;
};

struct io_rename {
	int old_dfd;
	struct filename *oldpath;
};

struct io_cqe {
	int fd;
};

struct io_kiocb {
	struct file *file;
	__u8 opcode;
	__u64 flags; // 4 bytes up to 6.8
	struct io_cqe cqe;
};

struct io_uring_cqe {
	__s32 res;
};

#pragma clang attribute pop

struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

#define ASYNC_CALLS 16384 // on their way at once
#define MAX_IOCBS 64	  // of one io_submit(2) that are looked at
#define MAX_IO_EVENTS 256 // of one io_getevents(2)

// Two calls are never on their way under one address: an iocb belongs to its program, a request to
// the kernel (tgid 0).
struct async_id {
	__u64 address;
	__u32 tgid;
	__u32 pad;
};

struct async_call {
	struct stall_wait_key key;
	__u64 start_ns, value, size;
	__u32 slot; // of who submitted it
	__s32 tid;  // whose slot it may no longer be
	__u32 operation;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ASYNC_CALLS);
	__type(key, struct async_id);
	__type(value, struct async_call);
} async_calls SEC(".maps");

// A file that is known by now. A write beyond its end is told apart as it is for write(2).
static __always_inline void set_async_file(struct async_call *call, struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	__u64 end = call->value + call->size;

	if (!inode)
		return;
	set_file_key(&call->key, inode);
	if (call->key.kind == STALL_WAIT_WRITE && is_regular(inode) &&
	    (wanted_kinds >> STALL_WAIT_EXTEND & 1) && end > (__u64)BPF_CORE_READ(inode, i_size))
		call->key.kind = STALL_WAIT_EXTEND;
}

static __always_inline bool is_wanted_kind(__u32 kind)
{
	return kind < STALL_WAIT_KINDS && (wanted_kinds >> kind & 1);
}

static __always_inline void remember_call(const struct async_id *id, const struct async_call *call)
{
	if (bpf_map_update_elem(&async_calls, id, call, 0))
		count_lost(STALL_LOST_ASYNC_FULL);
}

static __always_inline void tell_async(const struct async_call *call, __u64 now, __s64 result)
{
	__u32 index = call->slot;
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &index);

	if (!slot)
		return;
	if (!may_tell(stall_flow_of(&call->key, STALL_ROLE_UNKNOWN, STALL_RECORD_END), now))
		return;
	struct stall_wait_record *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		count_lost(STALL_LOST_RING_FULL);
		return;
	}
	begin_record(record, STALL_RECORD_END, slot);
	record->server = (struct stall_wait_server){};
	if (slot->tid == call->tid)
		__builtin_memcpy(record->comm, slot->comm, sizeof(record->comm));
	else
		record->ns_tid = 0;
	record->tid = call->tid;
	record->tgid = call->key.tgid;
	record->operation = call->operation;
	record->key = call->key;
	record->start_ns = call->start_ns;
	record->now_ns = now;
	record->result = result;
	record->value = call->value;
	record->size = call->size;
	record->slot = index;
	record->flags = STALL_SLOT_ASYNC;
	bpf_ringbuf_submit(record, 0);
}

static __always_inline bool moves_bytes(__u32 kind)
{
	return kind == STALL_WAIT_READ || kind == STALL_WAIT_WRITE || kind == STALL_WAIT_EXTEND;
}

static __always_inline void finish_call(const struct async_call *call, __s64 result)
{
	__u32 kind = call->key.kind;
	__u64 now = bpf_ktime_get_ns(), ns = now - call->start_ns;
	struct stall_wait_stat *stat = stat_at(take_stat(&call->key));

	if (!stat || kind >= STALL_WAIT_KINDS)
		return;
	count_wait(stat, ns, now);
	if (moves_bytes(kind) && result > 0)
		__sync_fetch_and_add(&stat->bytes, result);
	if (ns < thresholds[kind])
		return;
	__sync_fetch_and_add(&stat->over, 1);
	tell_async(call, now, result);
}

/*
 * libaio. Its end is known when the program fetches it, by io_getevents(2).
 */

/* include/uapi/linux/aio_abi.h */
enum {
	IOCB_CMD_PREAD = 0,
	IOCB_CMD_PWRITE = 1,
	IOCB_CMD_FSYNC = 2,
	IOCB_CMD_FDSYNC = 3,
	IOCB_CMD_PREADV = 7,
	IOCB_CMD_PWRITEV = 8,
};

struct iocb {
	__u64 data;
	__u32 key, rw_flags;
	__u16 opcode;
	__s16 priority;
	__u32 fd;
	__u64 buffer, size;
	__s64 offset;
	__u64 reserved;
	__u32 flags, event_fd;
};

struct io_event {
	__u64 data, iocb;
	__s64 result, result2;
};

static __always_inline __u32 kind_of_iocb(__u16 opcode)
{
	switch (opcode) {
	case IOCB_CMD_PREAD:
	case IOCB_CMD_PREADV:
		return STALL_WAIT_READ;
	case IOCB_CMD_PWRITE:
	case IOCB_CMD_PWRITEV:
		return STALL_WAIT_WRITE;
	case IOCB_CMD_FSYNC:
		return STALL_WAIT_FSYNC;
	case IOCB_CMD_FDSYNC:
		return STALL_WAIT_FDATASYNC;
	}
	return STALL_WAIT_KINDS;
}

static __always_inline struct async_id iocb_id(__u64 address)
{
	return (struct async_id){.address = address, .tgid = bpf_get_current_pid_tgid() >> 32};
}

// A function that the verifier looks at once, not once for each turn of the loop around it.
__noinline int follow_iocb(__u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct async_id id = iocb_id(address);
	struct async_call call = {};
	struct iocb iocb = {};

	if (bpf_probe_read_user(&iocb, sizeof(iocb), (void *)address)) {
		count_lost(STALL_LOST_PATH_READ);
		return 0;
	}
	call.key.kind = kind_of_iocb(iocb.opcode);
	struct stall_wait_slot *slot = take_slot(task, &call.slot);
	struct file *file = file_of(task, iocb.fd);
	if (!slot || !file || call.key.kind == STALL_WAIT_KINDS)
		return 0;
	call.key.tgid = slot->tgid;
	call.tid = slot->tid;
	// A vector has a count here, and its bytes are told at its end.
	if (iocb.opcode == IOCB_CMD_PREAD || iocb.opcode == IOCB_CMD_PWRITE)
		call.size = iocb.size;
	call.value = iocb.offset;
	call.operation = iocb.opcode;
	set_async_file(&call, file);
	if (!is_wanted_kind(call.key.kind))
		return 0;
	struct stall_wait_stat *stat = stat_at(take_stat(&call.key));
	if (stat && !stat->told)
		tell_file(FILE_OF_ENTER, slot, stat, file, iocb.fd);
	call.start_ns = bpf_ktime_get_ns();
	remember_call(&id, &call);
	return 0;
}

__noinline int finish_iocb(__u64 address, __s64 result)
{
	struct async_id id = iocb_id(address);
	struct async_call *found = bpf_map_lookup_elem(&async_calls, &id);

	if (!found)
		return 0;
	struct async_call call = *found;
	bpf_map_delete_elem(&async_calls, &id);
	finish_call(&call, result);
	return 0;
}

__noinline int forget_iocb(__u64 address)
{
	struct async_id id = iocb_id(address);

	bpf_map_delete_elem(&async_calls, &id);
	return 0;
}

static __always_inline __u64 iocb_at(__u64 array, __u32 i)
{
	__u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)(array + i * sizeof(address)));
	return address;
}

/* Called where a wanted process enters and leaves these system calls, with its saved registers:
 * io_submit(context, count, iocbs), io_getevents(context, min, count, events, ...). */
static __noinline int handle_io_submit(struct pt_regs *regs)
{
	if (!regs)
		return 0;
	__u64 count = regs->si, array = regs->dx;
	for (__u32 i = 0; i < MAX_IOCBS && i < count; i++)
		follow_iocb(iocb_at(array, i));
	if (count > MAX_IOCBS && (__s64)count > 0)
		__sync_fetch_and_add(&lost[STALL_LOST_ASYNC_FULL], count - MAX_IOCBS);
	return 0;
}

// Those that were not taken never come to an end.
static __noinline int handle_io_submitted(struct pt_regs *regs, long result)
{
	if (!regs)
		return 0;
	__u64 count = regs->si, array = regs->dx, taken = result < 0 ? 0 : result;
	for (__u32 i = 0; i < MAX_IOCBS && i < count; i++) {
		if (i >= taken)
			forget_iocb(iocb_at(array, i));
	}
	return 0;
}

static __noinline int handle_io_getevents(struct pt_regs *regs, long result)
{
	struct io_event event;

	if (!regs || result <= 0)
		return 0;
	__u64 count = result, array = regs->r10;
	for (__u32 i = 0; i < MAX_IO_EVENTS && i < count; i++) {
		if (bpf_probe_read_user(&event, sizeof(event), (void *)(array + i * sizeof(event))))
			break;
		finish_iocb(event.iocb, event.result);
	}
	return 0;
}

/*
 * io_uring. Both ends are tracepoints of the kernel's. What they say has changed over time: the
 * loader looks into the kernel's types and leaves these programs out where it does not fit.
 */

/* include/uapi/linux/io_uring.h */
enum {
	IORING_OP_READV = 1,
	IORING_OP_WRITEV = 2,
	IORING_OP_FSYNC = 3,
	IORING_OP_READ_FIXED = 4,
	IORING_OP_WRITE_FIXED = 5,
	IORING_OP_SYNC_FILE_RANGE = 8,
	IORING_OP_FALLOCATE = 17,
	IORING_OP_READ = 22,
	IORING_OP_WRITE = 23,
	IORING_OP_RENAMEAT = 35,
	IORING_OP_UNLINKAT = 36,
};
#define IORING_FSYNC_DATASYNC 1
#define REQ_F_FIXED_FILE 1 // include/linux/io_uring_types.h: its fd is an index of the ring's own

// Which argument of the tracepoint holds the result; 0: the third holds the completion entry.
const volatile __u32 uring_result_argument = 0;

static __always_inline __u32 kind_of_request(__u32 opcode)
{
	switch (opcode) {
	case IORING_OP_READV:
	case IORING_OP_READ:
	case IORING_OP_READ_FIXED:
		return STALL_WAIT_READ;
	case IORING_OP_WRITEV:
	case IORING_OP_WRITE:
	case IORING_OP_WRITE_FIXED:
		return STALL_WAIT_WRITE;
	case IORING_OP_FSYNC:
		return STALL_WAIT_FSYNC;
	case IORING_OP_SYNC_FILE_RANGE:
		return STALL_WAIT_SYNC_FILE_RANGE;
	case IORING_OP_FALLOCATE:
		return STALL_WAIT_FALLOCATE;
	case IORING_OP_RENAMEAT:
		return STALL_WAIT_RENAME;
	case IORING_OP_UNLINKAT:
		return STALL_WAIT_UNLINK;
	}
	return STALL_WAIT_KINDS;
}

// What the request is about, from the part of it that is the operation's own.
static __always_inline void read_request(struct io_kiocb *request, struct async_call *call)
{
	struct io_rw *rw = (void *)request;
	struct io_sync *sync = (void *)request;

	if (call->key.kind == STALL_WAIT_READ || call->key.kind == STALL_WAIT_WRITE) {
		call->value = BPF_CORE_READ(rw, kiocb.ki_pos);
		call->size = BPF_CORE_READ(rw, len);
		if (call->operation == IORING_OP_READV || call->operation == IORING_OP_WRITEV)
			call->size = 0; // a count of buffers
	} else if (call->key.kind != STALL_WAIT_RENAME && call->key.kind != STALL_WAIT_UNLINK) {
		call->value = BPF_CORE_READ(sync, off);
		call->size = BPF_CORE_READ(sync, len);
		if (call->key.kind == STALL_WAIT_FSYNC &&
		    (BPF_CORE_READ(sync, flags) & IORING_FSYNC_DATASYNC))
			call->key.kind = STALL_WAIT_FDATASYNC;
	}
}

static __always_inline void set_request_path(struct io_kiocb *request, struct async_call *call,
					     struct stall_wait_slot *slot)
{
	struct filename *name;
	__s32 directory;

	if (call->key.kind == STALL_WAIT_UNLINK) {
		name = BPF_CORE_READ((struct io_unlink *)request, filename);
		directory = BPF_CORE_READ((struct io_unlink *)request, dfd);
	} else {
		name = BPF_CORE_READ((struct io_rename *)request, oldpath);
		directory = BPF_CORE_READ((struct io_rename *)request, old_dfd);
	}
	take_path_stat(FILE_OF_SUBMIT, slot, &call->key, (__u64)BPF_CORE_READ(name, uptr),
		       directory);
}

static __always_inline int handle_request(struct io_kiocb *request)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct async_id id = {.address = (__u64)request};
	struct async_call call = {};

	if (!is_wanted(task->tgid))
		return 0;
	call.operation = BPF_CORE_READ(request, opcode);
	call.key.kind = kind_of_request(call.operation);
	if (!is_wanted_kind(call.key.kind))
		return 0;
	struct stall_wait_slot *slot = take_slot(task, &call.slot);
	if (!slot)
		return 0;
	call.key.tgid = slot->tgid;
	call.tid = slot->tid;
	read_request(request, &call);
	if (call.key.kind == STALL_WAIT_RENAME || call.key.kind == STALL_WAIT_UNLINK)
		set_request_path(request, &call, slot);
	else if (!(BPF_CORE_READ(request, flags) & REQ_F_FIXED_FILE))
		set_async_file(&call, file_of(task, BPF_CORE_READ(request, cqe.fd)));
	call.start_ns = bpf_ktime_get_ns();
	remember_call(&id, &call);
	return 0;
}

static __always_inline int handle_completion(struct io_kiocb *request, __s64 result)
{
	struct async_id id = {.address = (__u64)request};
	struct async_call *found = bpf_map_lookup_elem(&async_calls, &id);

	if (!found)
		return 0;
	struct async_call call = *found;
	bpf_map_delete_elem(&async_calls, &id);
	struct file *file = BPF_CORE_READ(request, file);
	bool by_path = call.key.kind == STALL_WAIT_RENAME || call.key.kind == STALL_WAIT_UNLINK;
	if (!by_path && !call.key.id)
		set_file_key(&call.key, BPF_CORE_READ(file, f_inode));
	struct stall_wait_stat *stat = stat_at(take_stat(&call.key));
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &call.slot);
	if (!by_path && stat && !stat->told && slot && file)
		tell_file(FILE_OF_COMPLETE, slot, stat, file, -1);
	finish_call(&call, result);
	return 0;
}

SEC("raw_tp/io_uring_submit_req")
int stall_uring_submit(struct bpf_raw_tracepoint_args *ctx)
{
	return handle_request((void *)ctx->args[0]);
}

SEC("raw_tp/io_uring_complete")
int stall_uring_complete(struct bpf_raw_tracepoint_args *ctx)
{
	struct io_uring_cqe *entry = (void *)ctx->args[2];

	if (uring_result_argument)
		return handle_completion((void *)ctx->args[1], (__s32)ctx->args[3]);
	return handle_completion((void *)ctx->args[1], BPF_CORE_READ(entry, res));
}

#endif

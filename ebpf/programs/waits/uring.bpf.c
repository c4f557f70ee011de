// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// io_uring. Both ends are tracepoints of the kernel. Their arguments have changed over time: the
// loader reads the kernel's types and excludes these programs where they do not fit.
#include "ebpf/programs/waits/async.bpf.h"
#include "ebpf/programs/waits/files.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"
#include "ebpf/programs/waits/stats.bpf.h"
#include "ebpf/programs/waits/storage.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kiocb {
	long long ki_pos;
};

/* Three layouts of the first part of a request, which depend on its operation. */
struct io_rw {
	struct kiocb kiocb;
	__u32 len;
	__s32 flags; // RWF_*
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

// File and size of the request, from the part that depends on the operation.
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
	get_or_create_path_stat(FILE_OF_SUBMIT, slot, &call->key, (__u64)BPF_CORE_READ(name, uptr),
				directory);
}

// Once its kind and its size are known.
static __always_inline int handle_storage_request(struct io_kiocb *request,
						  const struct async_id *id,
						  struct async_call *call,
						  struct stall_wait_slot *slot)
{
	struct io_rw *rw = (void *)request;
	bool is_fixed = BPF_CORE_READ(request, flags) & REQ_F_FIXED_FILE;
	struct storage_file of = {.user = FILE_OF_SUBMIT, .fd = BPF_CORE_READ(request, cqe.fd)};

	if (call->key.kind == STALL_WAIT_WRITE && bpf_core_field_exists(rw->flags))
		of.how = BPF_CORE_READ(rw, flags);
	if (!is_fixed)
		of.file = (__u64)file_of(bpf_get_current_task_btf(), of.fd);
	if (begin_storage_request(call, slot, &of))
		begin_async_call(id, call);
	return 0;
}

static __always_inline int handle_request(struct io_kiocb *request)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct async_id id = {.address = (__u64)request};
	struct async_call call = {};

	if (!is_target(task->tgid))
		return 0;
	call.operation = BPF_CORE_READ(request, opcode);
	call.key.kind = kind_of_request(call.operation);
	if (!is_enabled(call.key.kind))
		return 0;
	struct stall_wait_slot *slot = get_or_create_slot(task, &call.slot);
	if (!slot)
		return 0;
	call.key.tgid = slot->tgid;
	call.tid = slot->tid;
	read_request(request, &call);
	if (counts_storage)
		return handle_storage_request(request, &id, &call, slot);
	if (call.key.kind == STALL_WAIT_RENAME || call.key.kind == STALL_WAIT_UNLINK)
		set_request_path(request, &call, slot);
	else if (!(BPF_CORE_READ(request, flags) & REQ_F_FIXED_FILE))
		set_async_file(&call, (__u64)file_of(task, BPF_CORE_READ(request, cqe.fd)));
	begin_async_call(&id, &call);
	return 0;
}

static __always_inline int handle_completion(struct io_kiocb *request, __s64 result)
{
	struct async_id id = {.address = (__u64)request};
	struct async_call call = {};

	if (!take_async_call(&id, &call))
		return 0;
	struct file *file = BPF_CORE_READ(request, file);

	if (counts_storage) {
		if (call.key.id || set_request_file(&call, (__u64)file))
			count_async_call(&call, result);
		return 0;
	}
	bool by_path = call.key.kind == STALL_WAIT_RENAME || call.key.kind == STALL_WAIT_UNLINK;
	if (!by_path && !call.key.id)
		set_file_key(&call.key, BPF_CORE_READ(file, f_inode));
	struct stall_wait_stat *stat = stat_at(get_or_create_stat(&call.key));
	struct stall_wait_slot *slot = bpf_map_lookup_elem(&slots, &call.slot);
	if (!by_path && stat && !stat->announced && slot && file)
		emit_file(FILE_OF_COMPLETE, slot, stat, (__u64)file, -1);
	count_async_call(&call, result);
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

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// libaio. The end of a request is known when the program fetches it, by io_getevents(2).
#include "ebpf/programs/waits/async.bpf.h"
#include "ebpf/programs/waits/files.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"
#include "ebpf/programs/waits/stats.bpf.h"
#include "ebpf/programs/waits/storage.bpf.h"

#define MAX_IOCBS 64	  // of one io_submit(2) that are followed
#define MAX_IO_EVENTS 256 // of one io_getevents(2)

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

VERIFIED_ONCE int follow_iocb(__u64 address)
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
	struct stall_wait_slot *slot = get_or_create_slot(task, &call.slot);
	struct file *file = file_of(task, iocb.fd);
	if (!slot || !file || call.key.kind == STALL_WAIT_KINDS)
		return 0;
	call.key.tgid = slot->tgid;
	call.tid = slot->tid;
	// A vector has only a count here; its bytes are known at the end of the request.
	if (iocb.opcode == IOCB_CMD_PREAD || iocb.opcode == IOCB_CMD_PWRITE)
		call.size = iocb.size;
	call.value = iocb.offset;
	call.operation = iocb.opcode;
	if (counts_storage) {
		struct storage_file of = {.file = (__u64)file,
					  .user = FILE_OF_ENTER,
					  .fd = iocb.fd,
					  .how = iocb.rw_flags};

		if (begin_storage_request(&call, slot, &of))
			begin_async_call(&id, &call);
		return 0;
	}
	set_async_file(&call, (__u64)file);
	if (!is_enabled(call.key.kind))
		return 0;
	struct stall_wait_stat *stat = stat_at(get_or_create_stat(&call.key));
	if (stat && !stat->announced)
		emit_file(FILE_OF_ENTER, slot, stat, (__u64)file, iocb.fd);
	begin_async_call(&id, &call);
	return 0;
}

VERIFIED_ONCE int finish_iocb(__u64 address, __s64 result)
{
	struct async_id id = iocb_id(address);
	struct async_call call = {};

	if (take_async_call(&id, &call))
		count_async_call(&call, result);
	return 0;
}

VERIFIED_ONCE int forget_iocb(__u64 address)
{
	struct async_id id = iocb_id(address);
	struct async_call call = {};

	if (take_async_call(&id, &call) && counts_storage)
		end_storage_request(&call, 0, -1);
	return 0;
}

static __always_inline __u64 iocb_at(__u64 array, __u32 i)
{
	__u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)(array + i * sizeof(address)));
	return address;
}

HIDDEN int handle_io_submit(struct pt_regs *regs)
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

// Requests that the kernel did not accept never end.
HIDDEN int handle_io_submitted(struct pt_regs *regs, long result)
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

HIDDEN int handle_io_getevents(struct pt_regs *regs, long result)
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

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// A thread enters a system call.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/async.bpf.h"
#include "ebpf/programs/waits/calls.bpf.h"
#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"
#include "ebpf/programs/waits/storage.bpf.h"
#include "ebpf/programs/waits/uprobes.bpf.h"
#include "ebpf/programs/waits/wait.bpf.h"

#define MAX_IOVECS 8 // that are added up

struct futex_waitv {
	__u64 val, uaddr;
	__u32 flags, reserved;
};

struct iovec {
	__u64 base, length;
};

static __always_inline int handle_futex_wait(struct pt_regs *regs, __u64 word, __u32 operation,
					     __u64 value)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 index;
	struct stall_wait_slot *slot = get_or_create_slot(task, &index);

	if (!slot || is_compat(task))
		return 0;
	end_missed_wait(slot);
	if (slot->server.function)
		refresh_server_call(slot, regs->sp);
	struct stall_wait_key key = {.tgid = slot->tgid, .kind = STALL_WAIT_FUTEX, .id = word};
	slot->key = key;
	slot->operation = operation;
	slot->value = value;
	slot->size = 0;
	begin_wait(slot, (__u64)regs, get_or_create_stat(&key));
	return 0;
}

static __noinline int handle_futex_waitv(struct pt_regs *regs)
{
	struct futex_waitv first = {};

	if (!regs || bpf_probe_read_user(&first, sizeof(first), (void *)regs->di))
		return 0;
	return handle_futex_wait(regs, first.uaddr, regs->orig_ax, first.val);
}

struct wake {
	__u64 regs; // their address
	__u64 word;
	__u32 operation;
};

VERIFIED_ONCE int emit_waker(struct wake *wake)
{
	__u32 index;
	struct stall_wait_slot *slot = get_or_create_slot(bpf_get_current_task_btf(), &index);

	if (!slot || !wake)
		return 0;
	struct stall_wait_key key = {.tgid = slot->tgid,
				     .kind = STALL_WAIT_FUTEX,
				     .id = wake->word};
	__u64 tag = stall_wait_tag(&key);
	__u32 place = tag & stat_mask;
	struct stall_wait_stat *stat = stat_at(place);
	if (!stat || stat->tag != tag) {
		place = find_stat_slow(tag);
		stat = stat_at(place);
	}
	if (!stat || stat->tag != tag || !stat->marked || stat->role == STALL_ROLE_COND)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	if (!is_record_allowed_counted(stall_flow_of(&key, stat->role, STALL_RECORD_WAKER), now))
		return 0;
	struct record_buffer *out = acquire_record();
	if (!out)
		return 0;
	init_record(&out->record, STALL_RECORD_WAKER, slot);
	out->record.key = key;
	out->record.start_ns = out->record.now_ns = now;
	out->record.operation = wake->operation;
	out->record.slot = index;
	emit_with_stack(out, (void *)wake->regs);
	release_record(out);
	return 0;
}

static __always_inline int handle_wake(struct pt_regs *regs, __u64 word, __u32 operation)
{
	struct wake wake = {.regs = (__u64)regs, .word = word, .operation = operation};

	if (!marks || !is_target(bpf_get_current_task_btf()->tgid))
		return 0;
	return emit_waker(&wake);
}

static __always_inline int handle_futex(struct pt_regs *regs)
{
	__u64 operation = regs->si;

	if (is_futex_operation(operation, FUTEX_WAITS))
		return handle_futex_wait(regs, regs->di, operation, (__u32)regs->dx);
	if (!marks || !is_futex_operation(operation, FUTEX_WAKES))
		return 0;
	handle_wake(regs, regs->di, operation);
	if ((operation & FUTEX_CMD_MASK) == FUTEX_WAKE_OP)
		handle_wake(regs, regs->r8, operation);
	return 0;
}

static __noinline int handle_requeue(struct pt_regs *regs)
{
	struct futex_waitv first = {};

	if (!marks || !regs || bpf_probe_read_user(&first, sizeof(first), (void *)regs->di))
		return 0;
	return handle_wake(regs, first.uaddr, regs->orig_ax);
}

static __always_inline __u64 vector_size(__u64 address, __u64 count)
{
	struct iovec vector[MAX_IOVECS] = {};
	__u64 size = 0;

	if (count > MAX_IOVECS)
		count = MAX_IOVECS;
	if (!count || bpf_probe_read_user(vector, count * sizeof(vector[0]), (void *)address))
		return 0;
	for (int i = 0; i < MAX_IOVECS; i++)
		size += vector[i].length;
	return size;
}

static __always_inline bool is_transfer(__u32 how)
{
	return how >= STALL_CALL_TRANSFER && how <= STALL_CALL_VECTOR_AT;
}

// How many bytes, from where.
static __always_inline void read_extent(const struct call_args *args, __u64 *offset, __u64 *size)
{
	*offset = is_positioned(args->how) ? args->r10 : 0;
	*size = 0;
	switch (args->how) {
	case STALL_CALL_RANGE:
		*offset = args->si;
		*size = args->dx;
		break;
	case STALL_CALL_FALLOCATE:
		*offset = args->dx;
		*size = args->r10;
		break;
	case STALL_CALL_TRUNCATE:
		*size = args->si;
		break;
	case STALL_CALL_TRANSFER:
	case STALL_CALL_TRANSFER_AT:
		*size = args->dx;
		break;
	case STALL_CALL_VECTOR:
	case STALL_CALL_VECTOR_AT:
		*size = vector_size(args->si, args->dx);
		break;
	}
}

VERIFIED_ONCE int handle_file_call(struct call_args *args)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 offset, size;
	__u32 index;

	if (!args || !is_target(task->tgid) || is_compat(task))
		return 0;
	__u32 how = args->how, kind = args->kind;
	struct file *file = file_of(task, args->di);
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	if (is_transfer(how) && !is_regular(inode))
		return 0;
	read_extent(args, &offset, &size);
	kind = kind_of_transfer(how, kind, offset + size, inode);
	if (!is_enabled(kind))
		return 0;
	struct stall_wait_slot *slot = get_or_create_slot(task, &index);
	if (!slot)
		return 0;
	end_missed_wait(slot);
	struct stall_wait_key key = {.tgid = slot->tgid, .kind = kind};
	if (inode)
		set_file_key(&key, inode);
	slot->key = key;
	slot->operation = args->number;
	slot->value = offset;
	slot->size = size;
	__u32 stat_index = get_or_create_stat(&key);
	struct stall_wait_stat *stat = stat_at(stat_index);
	if (stat && !stat->announced && inode)
		emit_file(FILE_OF_ENTER, slot, stat, (__u64)file, args->di);
	begin_wait(slot, args->regs, stat_index);
	return 0;
}

// Calls whose file is given by a path, by an address, or not at all.
VERIFIED_ONCE int handle_other_call(struct call_args *args)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 index, stat;

	if (!args || !is_target(task->tgid) || is_compat(task))
		return 0;
	struct stall_wait_slot *slot = get_or_create_slot(task, &index);
	if (!slot)
		return 0;
	end_missed_wait(slot);
	struct stall_wait_key key = {.tgid = slot->tgid, .kind = args->kind};
	slot->operation = args->number;
	slot->value = 0;
	slot->size = 0;
	if (args->how == STALL_CALL_PATH || args->how == STALL_CALL_PATH_AT) {
		bool at = args->how == STALL_CALL_PATH_AT;

		stat = get_or_create_path_stat(FILE_OF_ENTER, slot, &key, at ? args->si : args->di,
					       at ? (__s32)args->di : -1);
	} else {
		if (args->how == STALL_CALL_MAPPING) {
			key.id = args->di;
			slot->size = args->si;
		}
		stat = get_or_create_stat(&key);
	}
	slot->key = key;
	begin_wait(slot, args->regs, stat);
	return 0;
}

// restart_syscall(2): the kernel continues the wait that a signal had interrupted.
static __noinline int handle_restart(struct pt_regs *regs)
{
	__u32 index;
	struct stall_wait_slot *slot = find_slot(bpf_get_current_task_btf(), &index);

	if (!regs || !slot || !slot->restart)
		return 0;
	end_missed_wait(slot);
	begin_wait(slot, (__u64)regs, slot->stat);
	return 0;
}

static __always_inline int handle_other(struct pt_regs *regs, __u32 number, struct stall_call call)
{
	struct call_args args = {
		.regs = (__u64)regs,
		.di = regs->di,
		.si = regs->si,
		.dx = regs->dx,
		.r10 = regs->r10,
		.number = number,
		.how = call.how,
		.kind = call.kind,
	};

	if (counts_storage)
		return begin_storage_call(&args);
	if (call.how >= STALL_CALL_MAPPING)
		return handle_other_call(&args);
	return handle_file_call(&args);
}

static __always_inline int handle_enter(struct pt_regs *regs, __u64 number)
{
	if (number >= STALL_CALLS)
		return 0;
	struct stall_call call = {.how = calls[number].how, .kind = calls[number].kind};

	switch (call.how) {
	case STALL_CALL_IGNORED:
		return 0;
	case STALL_CALL_FUTEX:
		return handle_futex(regs);
	case STALL_CALL_FUTEX_WAIT:
		return handle_futex_wait(regs, regs->di, number, regs->si);
	case STALL_CALL_FUTEX_WAITV:
		return handle_futex_waitv(regs);
	case STALL_CALL_FUTEX_WAKE:
		return handle_wake(regs, regs->di, number);
	case STALL_CALL_FUTEX_REQUEUE:
		return handle_requeue(regs);
	case STALL_CALL_RESTART:
		return handle_restart(regs);
	case STALL_CALL_IO_SUBMIT:
		return is_target(bpf_get_current_task_btf()->tgid) ? handle_io_submit(regs) : 0;
	case STALL_CALL_IO_GETEVENTS:
		return 0;
	default:
		return handle_other(regs, number, call);
	}
}

// Raw tracepoints with BTF: those of single system calls need tracefs, and cost more.
SEC("tp_btf/sys_enter")
int BPF_PROG(stall_sys_enter, struct pt_regs *regs, long number)
{
	return handle_enter(regs, number);
}

SEC("tp/raw_syscalls/sys_enter")
int stall_perf_enter(struct syscall_event *event)
{
	return handle_enter((void *)bpf_task_pt_regs(bpf_get_current_task_btf()), event->number);
}

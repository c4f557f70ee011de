// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Uprobes in the servers' own wait functions.
#include "ebpf/programs/waits/uprobes.bpf.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "ebpf/programs/waits/records.bpf.h"
#include "ebpf/programs/waits/slots.bpf.h"

/* A return address and the words above it. */
struct frame {
	__u64 return_address;
	__u64 words[STALL_FRAME_WORDS];
};

static __always_inline bool read_frame(struct frame *frame, __u64 call_sp)
{
	return !bpf_probe_read_user(frame, sizeof(*frame), (void *)call_sp);
}

/* Whether the call that a uprobe saw has not returned: its return address is still on the stack,
 * under the same frame. There is no other sign without a return uprobe, which would rewrite that
 * address. */
static __always_inline bool is_same_server_call(__u64 call_sp, __u64 return_address, __u32 hash,
						__u64 sp)
{
	struct frame frame;

	return call_sp >= sp && read_frame(&frame, call_sp) &&
	       frame.return_address == return_address && stall_frame_hash(frame.words) == hash;
}

#define CALL 0xe8 // CALL rel32
#define CALL_SIZE 5

/* The function that the instruction before a return address calls; 0: it is no direct call. */
static __always_inline __u64 called_before(__u64 return_address)
{
	__u8 code[CALL_SIZE] = {};
	__s32 distance;

	if (bpf_probe_read_user(code, sizeof(code), (void *)(return_address - CALL_SIZE)) ||
	    code[0] != CALL)
		return 0;
	distance = code[1] | code[2] << 8 | code[3] << 16 | (__u32)code[4] << 24;
	return return_address + distance;
}

/* InnoDB reserves a cell for a latch in one call and waits for the cell in another, from the same
 * function: the second return address is then at the place of the first. So the call that waits
 * needs no uprobe, which the kernel would have to single-step in old binaries. */
static __always_inline bool refresh_prepared_call(struct stall_wait_server *server, __u64 sp)
{
	struct frame frame;

	if (server->sp < sp || !read_frame(&frame, server->sp) ||
	    called_before(frame.return_address) != server->return_address)
		return false;
	server->return_address = frame.return_address;
	server->frame = stall_frame_hash(frame.words);
	server->prepared = 0;
	return true;
}

VERIFIED_ONCE int refresh_server_call(struct stall_wait_slot *slot, __u64 sp)
{
	if (!slot)
		return 0;
	struct stall_wait_server *server = &slot->server;
	struct stall_wait_outer *outer = &slot->outer;
	if (!server->function)
		return 0;
	if (server->prepared
		    ? refresh_prepared_call(server, sp)
		    : is_same_server_call(server->sp, server->return_address, server->frame, sp))
		return 0;
	server->function = 0;
	if (!outer->function ||
	    !is_same_server_call(outer->sp, outer->return_address, outer->frame, sp))
		return 0;
	server->prepared = 0;
	server->lock = outer->lock;
	server->arg = 0;
	server->sp = outer->sp;
	server->return_address = outer->return_address;
	server->frame = outer->frame;
	server->function = outer->function;
	outer->function = 0;
	return 0;
}

#define UPROBE_FUNCTIONS 64 // STALL_BPF_UPROBE_FUNCTIONS

__u64 uprobe_hits[UPROBE_FUNCTIONS];

// The loader's data of each uprobe, packed into its cookie.
struct uprobe_cookie {
	__u8 function, lock_arg, second_arg, prepares;
	__s32 next_call;
};

// `regs` is a copy: the verifier must see which member of the context is read.
static __always_inline __u64 argument(const struct pt_regs *regs, __u8 number)
{
	switch (number) {
	case 1:
		return regs->di;
	case 2:
		return regs->si;
	case 3:
		return regs->dx;
	case 4:
		return regs->cx;
	case 5:
		return regs->r8;
	case 6:
		return regs->r9;
	}
	return 0;
}

static __always_inline struct uprobe_cookie count_hit(void *ctx)
{
	__u64 value = bpf_get_attach_cookie(ctx);
	struct uprobe_cookie cookie = {value, value >> 8, value >> 16, value >> 24, value >> 32};

	__sync_fetch_and_add(&uprobe_hits[value & (UPROBE_FUNCTIONS - 1)], 1);
	return cookie;
}

// A call within the previous one, for the same lock: a rwlock of MariaDB waits for its own mutex,
// which is its first member.
static __always_inline bool is_same_lock(const struct stall_wait_server *before, __u64 lock)
{
	return lock && lock - before->lock + 16 <= 32;
}

// Returns whether the previous call has not returned and contains this one.
static __always_inline bool keep_outer(struct stall_wait_slot *slot, __u64 sp)
{
	const struct stall_wait_server *before = &slot->server;
	struct stall_wait_outer *outer = &slot->outer;

	if (!before->function || before->prepared)
		return false;
	if (!is_same_server_call(before->sp, before->return_address, before->frame, sp))
		return false;
	outer->function = before->function;
	outer->lock = before->lock;
	outer->sp = before->sp;
	outer->return_address = before->return_address;
	outer->frame = before->frame;
	return true;
}

static __always_inline int handle_server_call(struct pt_regs *regs, struct uprobe_cookie cookie)
{
	struct pt_regs copy = *regs;
	__u64 lock = argument(&copy, cookie.lock_arg), arg = argument(&copy, cookie.second_arg);
	__u64 sp = copy.sp;
	struct frame frame;
	__u32 index;
	struct stall_wait_slot *slot = get_or_create_slot(bpf_get_current_task_btf(), &index);

	if (!slot || !read_frame(&frame, sp))
		return 0;
	struct stall_wait_server *server = &slot->server;
	if (keep_outer(slot, sp) && is_same_lock(server, lock))
		return 0;
	server->function = cookie.function + 1;
	server->prepared = cookie.prepares;
	server->lock = lock;
	server->arg = arg;
	server->sp = sp;
	server->return_address =
		cookie.prepares ? copy.ip + cookie.next_call : frame.return_address;
	server->frame = stall_frame_hash(frame.words);
	return 0;
}

static __always_inline int handle_server_event(struct pt_regs *regs, struct uprobe_cookie cookie)
{
	struct pt_regs copy = *regs;
	struct frame frame = {};
	__u32 index;
	__u64 now = bpf_ktime_get_ns();
	struct stall_wait_slot *slot = get_or_create_slot(bpf_get_current_task_btf(), &index);

	if (!slot ||
	    !is_record_allowed_counted(stall_flow(STALL_FLOW_EVENTS, STALL_RECORD_SERVER), now))
		return 0;
	struct record_buffer *out = acquire_record();
	if (!out)
		return 0;
	read_frame(&frame, copy.sp);
	init_record(&out->record, STALL_RECORD_SERVER, slot);
	out->record.server = (struct stall_wait_server){
		.function = cookie.function + 1,
		.lock = argument(&copy, cookie.lock_arg),
		.arg = argument(&copy, cookie.second_arg),
		.sp = copy.sp,
		.return_address = frame.return_address,
		.frame = stall_frame_hash(frame.words),
	};
	out->record.start_ns = now;
	out->record.now_ns = now;
	out->record.slot = index;
	out->record.seq = slot->seq;
	emit_with_stack(out, regs);
	release_record(out);
	return 0;
}

SEC("uprobe")
int stall_server_call(struct pt_regs *ctx)
{
	return handle_server_call(ctx, count_hit(ctx));
}

SEC("uprobe")
int stall_server_event(struct pt_regs *ctx)
{
	return handle_server_event(ctx, count_hit(ctx));
}

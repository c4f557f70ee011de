/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* An asynchronous request in flight. */
#ifndef STALL_WAITS_ASYNC_CALL_BPF_H
#define STALL_WAITS_ASYNC_CALL_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

// Two requests are never in flight under one address: an iocb belongs to its program, a request to
// the kernel (tgid 0).
struct async_id {
	__u64 address;
	__u32 tgid;
	__u32 pad;
};

struct async_call {
	struct stall_wait_key key;
	__u64 start_ns, value, size;
	__u32 slot; // of the thread that submitted it
	__s32 tid;  // the slot may be another thread's by now
	__u32 operation;
	__u32 flags; // counting for storage: STALL_SLOT_DIRECT, STALL_SLOT_DSYNC
};

#endif

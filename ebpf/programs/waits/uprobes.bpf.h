/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef STALL_WAITS_UPROBES_BPF_H
#define STALL_WAITS_UPROBES_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

// Called when a thread enters a futex wait with this stack pointer, before others may read the
// slot: after a wait for a mutex inside a wait for a row, the thread waits for the row again.
VERIFIED_ONCE int refresh_server_call(struct stall_wait_slot *slot, __u64 sp);

#endif

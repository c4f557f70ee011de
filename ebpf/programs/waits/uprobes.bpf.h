/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef STALL_WAITS_UPROBES_BPF_H
#define STALL_WAITS_UPROBES_BPF_H

#include "ebpf/programs/waits/state.bpf.h"

// Where a thread enters a futex wait with this stack pointer, before others may read the slot: when
// a wait for a mutex inside a wait for a row has ended, the thread waits for the row.
VERIFIED_ONCE int refresh_server_call(struct stall_wait_slot *slot, __u64 sp);

#endif

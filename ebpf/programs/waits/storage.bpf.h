/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What is written to files, and the sums of their syncs: instead of waits, where the programs were
 * loaded for it (counts_storage). */
#ifndef STALL_WAITS_STORAGE_BPF_H
#define STALL_WAITS_STORAGE_BPF_H

#include "ebpf/programs/waits/async_call.bpf.h"
#include "ebpf/programs/waits/calls.bpf.h"

struct storage_file {
	__u64 file;  // address of the kernel's struct
	__u64 inode; // that of inode_of()
	__u32 user;  // enum file_user
	__s32 fd;    // -1: unknown
	__u32 how;   // RWF_*
	// Set when its stat is looked up.
	__u32 flags; // STALL_SLOT_DIRECT, STALL_SLOT_DSYNC
};

// The entry and the return of a call that is not of a futex.
VERIFIED_ONCE int begin_storage_call(struct call_args *args);
VERIFIED_ONCE int end_storage_call(struct stall_wait_slot *slot, __u64 ns, __s64 result);

// An asynchronous request whose kind is set; its size is 0 where it is not known yet. Returns whether
// it is counted. A file 0 is not known before the end; then call->value has RWF_*.
VERIFIED_ONCE int begin_storage_request(struct async_call *call, struct stall_wait_slot *slot,
					struct storage_file *of);
// Its file is known only now.
VERIFIED_ONCE int set_request_file(struct async_call *call, __u64 file);
VERIFIED_ONCE int end_storage_request(const struct async_call *call, __u64 ns, __s64 result);

#endif

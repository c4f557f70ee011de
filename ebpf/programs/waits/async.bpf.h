/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Asynchronous I/O, from its submission to the moment when its end is known; for libaio the system
 * calls of both. */
#ifndef STALL_WAITS_ASYNC_BPF_H
#define STALL_WAITS_ASYNC_BPF_H

#include "ebpf/programs/waits/async_call.bpf.h"

// Sets the key's file, and its kind where a write makes the file longer. `file`: the address of the
// kernel's struct.
VERIFIED_ONCE int set_async_file(struct async_call *call, __u64 file);
// Hidden from the compiler: up to 6.1 the verifier needs a map's key on the stack.
HIDDEN void begin_async_call(const struct async_id *id, struct async_call *call);
// Removes the call that has ended. Returns whether it was known.
HIDDEN bool take_async_call(const struct async_id *id, struct async_call *ret);
VERIFIED_ONCE int count_async_call(const struct async_call *call, __s64 result);

// At the entry and the return of these system calls, with the saved registers: io_submit(context,
// count, iocbs), io_getevents(context, min, count, events, ...).
HIDDEN int handle_io_submit(struct pt_regs *regs);
HIDDEN int handle_io_submitted(struct pt_regs *regs, long result);
HIDDEN int handle_io_getevents(struct pt_regs *regs, long result);

#endif

// SPDX-License-Identifier: Apache-2.0
// The latest threads that woke waiters: the other end of waits that are over.
#ifndef STALL_WAIT_WAKERS_H
#define STALL_WAIT_WAKERS_H

#include <stdint.h>
#include <sys/types.h>

#include "ebpf/waits.h"
#include "snapshot/snapshot.h"

#define STALL_WAKERS 4096 // a power of two

struct stall_waker {
	uint64_t tag; // of the key; 0: none
	uint64_t when_ns;
	pid_t tid;
	uint32_t stack;
	enum stall_label label;
	char comm[STALL_BPF_COMM];
};

struct stall_wakers {
	struct stall_waker wakers[STALL_WAKERS];
	uint64_t count; // since the start: the latest is at count - 1
};

void stall_wakers_add(struct stall_wakers *wakers, const struct stall_wait_record *record,
		      uint32_t stack, enum stall_label label);
// The last one that woke waiters of the key while this wait went on; NULL: none is known.
const struct stall_waker *stall_wakers_find(const struct stall_wakers *wakers,
					    const struct stall_wait_record *end);

#endif

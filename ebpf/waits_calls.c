// SPDX-License-Identifier: Apache-2.0
#include "ebpf/waits_calls.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "ebpf/waits.h"

#define ASYNC                                                                                      \
	((1U << STALL_WAIT_FSYNC) | (1U << STALL_WAIT_FDATASYNC) | (1U << STALL_WAIT_READ) |       \
	 (1U << STALL_WAIT_WRITE))

void stall_wait_calls_set(uint32_t kinds, struct stall_call *calls)
{
	static const struct {
		int number;
		struct stall_call call;
	} table[] = {STALL_WAIT_CALL_TABLE};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct stall_call call = table[i].call;
		bool extends =
			call.kind == STALL_WAIT_WRITE &&
			(call.how == STALL_CALL_TRANSFER_AT || call.how == STALL_CALL_VECTOR_AT) &&
			(kinds >> STALL_WAIT_EXTEND & 1);

		if ((kinds >> call.kind & 1) || extends)
			calls[table[i].number] = call;
	}
	if (kinds & ASYNC) {
		calls[SYS_io_submit].how = STALL_CALL_IO_SUBMIT;
		calls[SYS_io_getevents].how = STALL_CALL_IO_GETEVENTS;
		calls[SYS_io_pgetevents].how = STALL_CALL_IO_GETEVENTS;
	}
}

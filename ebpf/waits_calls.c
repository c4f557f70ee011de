// SPDX-License-Identifier: Apache-2.0
#include "ebpf/waits_calls.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "ebpf/waits.h"

// Numbers are those of x86-64, by hand where a system's headers may be older than the call.
#define NR_futex_waitv 449
#define NR_futex_wake 454
#define NR_futex_wait 455
#define NR_futex_requeue 456

#define ASYNC                                                                                      \
	((1U << STALL_WAIT_FSYNC) | (1U << STALL_WAIT_FDATASYNC) | (1U << STALL_WAIT_READ) |       \
	 (1U << STALL_WAIT_WRITE))

void stall_wait_calls_set(uint32_t kinds, struct stall_call *calls)
{
	static const struct {
		int number;
		struct stall_call call;
	} table[] = {
		{SYS_futex, {STALL_CALL_FUTEX, STALL_WAIT_FUTEX}},
		{NR_futex_wait, {STALL_CALL_FUTEX_WAIT, STALL_WAIT_FUTEX}},
		{NR_futex_waitv, {STALL_CALL_FUTEX_WAITV, STALL_WAIT_FUTEX}},
		{NR_futex_wake, {STALL_CALL_FUTEX_WAKE, STALL_WAIT_FUTEX}},
		{NR_futex_requeue, {STALL_CALL_FUTEX_REQUEUE, STALL_WAIT_FUTEX}},
		{SYS_restart_syscall, {STALL_CALL_RESTART, STALL_WAIT_FUTEX}},
		{SYS_fsync, {STALL_CALL_FILE, STALL_WAIT_FSYNC}},
		{SYS_fdatasync, {STALL_CALL_FILE, STALL_WAIT_FDATASYNC}},
		{SYS_sync_file_range, {STALL_CALL_RANGE, STALL_WAIT_SYNC_FILE_RANGE}},
		{SYS_msync, {STALL_CALL_MAPPING, STALL_WAIT_MSYNC}},
		{SYS_syncfs, {STALL_CALL_FILE, STALL_WAIT_SYNCFS}},
		{SYS_sync, {STALL_CALL_ALL, STALL_WAIT_SYNCFS}},
		{SYS_fallocate, {STALL_CALL_FALLOCATE, STALL_WAIT_FALLOCATE}},
		{SYS_ftruncate, {STALL_CALL_TRUNCATE, STALL_WAIT_FTRUNCATE}},
		{SYS_truncate, {STALL_CALL_PATH, STALL_WAIT_FTRUNCATE}},
		{SYS_unlink, {STALL_CALL_PATH, STALL_WAIT_UNLINK}},
		{SYS_unlinkat, {STALL_CALL_PATH_AT, STALL_WAIT_UNLINK}},
		{SYS_rename, {STALL_CALL_PATH, STALL_WAIT_RENAME}},
		{SYS_renameat, {STALL_CALL_PATH_AT, STALL_WAIT_RENAME}},
		{SYS_renameat2, {STALL_CALL_PATH_AT, STALL_WAIT_RENAME}},
		{SYS_read, {STALL_CALL_TRANSFER, STALL_WAIT_READ}},
		{SYS_pread64, {STALL_CALL_TRANSFER_AT, STALL_WAIT_READ}},
		{SYS_readv, {STALL_CALL_VECTOR, STALL_WAIT_READ}},
		{SYS_preadv, {STALL_CALL_VECTOR_AT, STALL_WAIT_READ}},
		{SYS_preadv2, {STALL_CALL_VECTOR_AT, STALL_WAIT_READ}},
		{SYS_write, {STALL_CALL_TRANSFER, STALL_WAIT_WRITE}},
		{SYS_pwrite64, {STALL_CALL_TRANSFER_AT, STALL_WAIT_WRITE}},
		{SYS_writev, {STALL_CALL_VECTOR, STALL_WAIT_WRITE}},
		{SYS_pwritev, {STALL_CALL_VECTOR_AT, STALL_WAIT_WRITE}},
		{SYS_pwritev2, {STALL_CALL_VECTOR_AT, STALL_WAIT_WRITE}},
	};

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

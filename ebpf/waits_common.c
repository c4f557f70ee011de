// SPDX-License-Identifier: Apache-2.0
#include "ebpf/waits_common.h"

const char *stall_wait_lost_name(enum stall_wait_lost cause)
{
	static const char *const names[STALL_LOST_CAUSES] = {
		[STALL_LOST_RING_FULL] = "ring-full",	  [STALL_LOST_SLOTS_FULL] = "slots-full",
		[STALL_LOST_KEYS_FULL] = "keys-full",	  [STALL_LOST_FILES_FULL] = "files-full",
		[STALL_LOST_STACK_SHORT] = "stack-short", [STALL_LOST_STACK_READ] = "stack-read",
		[STALL_LOST_PATH_READ] = "path-read",	  [STALL_LOST_MISSED] = "missed",
		[STALL_LOST_MARKS_FULL] = "marks-full",	  [STALL_LOST_RATE] = "rate",
		[STALL_LOST_ASYNC_FULL] = "async-full",
	};

	return cause < STALL_LOST_CAUSES && names[cause] ? names[cause] : "unknown";
}

const char *stall_wait_kind_name(enum stall_wait_kind kind)
{
	static const char *const names[STALL_WAIT_KINDS] = {
		[STALL_WAIT_FUTEX] = "futex",
		[STALL_WAIT_FSYNC] = "fsync",
		[STALL_WAIT_FDATASYNC] = "fdatasync",
		[STALL_WAIT_SYNC_FILE_RANGE] = "sync_file_range",
		[STALL_WAIT_MSYNC] = "msync",
		[STALL_WAIT_SYNCFS] = "syncfs",
		[STALL_WAIT_FALLOCATE] = "fallocate",
		[STALL_WAIT_FTRUNCATE] = "ftruncate",
		[STALL_WAIT_EXTEND] = "extend",
		[STALL_WAIT_UNLINK] = "unlink",
		[STALL_WAIT_RENAME] = "rename",
		[STALL_WAIT_READ] = "read",
		[STALL_WAIT_WRITE] = "write",
	};

	return kind < STALL_WAIT_KINDS && names[kind] ? names[kind] : "unknown";
}

const char *stall_wait_role_name(enum stall_wait_role role)
{
	static const char *const names[STALL_ROLES] = {
		[STALL_ROLE_UNKNOWN] = "unknown",   [STALL_ROLE_MUTEX] = "mutex",
		[STALL_ROLE_RWLOCK] = "rwlock",	    [STALL_ROLE_COND] = "cond",
		[STALL_ROLE_SEM] = "sem",	    [STALL_ROLE_JOIN] = "join",
		[STALL_ROLE_ROW_LOCK] = "row-lock", [STALL_ROLE_METADATA_LOCK] = "metadata-lock",
		[STALL_ROLE_COMMIT] = "commit",
	};

	return role < STALL_ROLES && names[role] ? names[role] : "unknown";
}

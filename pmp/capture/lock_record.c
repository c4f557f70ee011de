// SPDX-License-Identifier: Apache-2.0
#include "capture/lock_record.h"

#include <stdio.h>

#include "base/cleanup.h"

void stall_lock_name_write(const struct stall_lock *lock, struct stall_json *json)
{
	_cleanup_free_ char *text = NULL;

	if (!lock->symbol || !lock->symbol_offset)
		stall_json_string(json, lock->symbol);
	else if (asprintf(&text, "%s+0x%llx", lock->symbol,
			  (unsigned long long)lock->symbol_offset) < 0)
		json->failed = true;
	else
		stall_json_string(json, text);
}

void stall_lock_record_write(const struct stall_lock *lock, size_t id, struct stall_json *json)
{
	stall_json_member_uint(json, "id", id);
	stall_json_member_uint(json, "process", lock->process);
	stall_json_member_hex(json, "address", lock->address);
	stall_json_key(json, "futex");
	if (lock->futex)
		stall_json_hex(json, lock->futex);
	else
		stall_json_null(json);
	stall_json_member_string(json, "kind", stall_lock_kind_name(lock->kind));
	stall_json_key(json, "owner_tid");
	if (lock->owner_tid)
		stall_json_int(json, lock->owner_tid);
	else
		stall_json_null(json);
	// Where the word is no lock's, any 32 bits can stand there; a reader takes no negative number.
	if (!lock->owner_tid && lock->owner_raw)
		stall_json_member_uint(json, "owner_raw", (uint32_t)lock->owner_raw);
	stall_json_key(json, "readers");
	if (lock->kind == STALL_LOCK_RWLOCK)
		stall_json_uint(json, lock->readers);
	else
		stall_json_null(json);
	stall_json_member_uint(json, "waiters", lock->waiters);
	stall_json_key(json, "symbol");
	stall_lock_name_write(lock, json);
	stall_json_member_bool(json, "stable", lock->stable);
	stall_json_member_string(json, "source", "futex");
}

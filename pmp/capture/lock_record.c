// SPDX-License-Identifier: Apache-2.0
#include "capture/lock_record.h"

#include <stdio.h>

#include "base/cleanup.h"
#include "capture/fields.h"

const char *stall_lock_name(const struct stall_lock *lock, struct stall_json *json,
			    char **ret_storage)
{
	if (!lock->symbol || !lock->symbol_offset)
		return lock->symbol;
	if (asprintf(ret_storage, "%s+0x%llx", lock->symbol,
		     (unsigned long long)lock->symbol_offset) < 0) {
		*ret_storage = NULL;
		json->failed = true;
	}
	return *ret_storage;
}

void stall_lock_record_write(const struct stall_lock *lock, size_t id, struct stall_json *json)
{
	_cleanup_free_ char *name = NULL;

	stall_put_lock_id(json, id);
	stall_put_lock_process(json, lock->process);
	stall_put_lock_address(json, lock->address);
	stall_put_lock_futex(json, lock->futex, lock->futex);
	stall_put_lock_kind(json, stall_lock_kind_name(lock->kind));
	stall_put_lock_owner_tid(json, lock->owner_tid, lock->owner_tid);
	// Where the word is no lock's, any 32 bits can stand there; a reader takes no negative number.
	if (!lock->owner_tid && lock->owner_raw)
		stall_put_lock_owner_raw(json, (uint32_t)lock->owner_raw);
	stall_put_lock_readers(json, lock->kind == STALL_LOCK_RWLOCK, lock->readers);
	stall_put_lock_waiters(json, lock->waiters);
	stall_put_lock_symbol(json, stall_lock_name(lock, json, &name));
	stall_put_lock_stable(json, lock->stable);
	stall_put_lock_source(json, "futex");
}

// SPDX-License-Identifier: Apache-2.0
// The `lock` record of docs/capture-format.md.
#ifndef STALL_LOCK_RECORD_H
#define STALL_LOCK_RECORD_H

#include <stddef.h>

#include "base/json_writer.h"
#include "lock/lock.h"

// "LOCK_open", "buffer+0x40", or NULL. Free what is in *ret_storage. Out of memory: json has failed.
const char *stall_lock_name(const struct stall_lock *lock, struct stall_json *json,
			    char **ret_storage);

// The members of the record.
void stall_lock_record_write(const struct stall_lock *lock, size_t id, struct stall_json *json);

#endif

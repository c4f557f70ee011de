// SPDX-License-Identifier: Apache-2.0
#include "capture/trigger.h"

#include "base/clock.h"
#include "capture/lock_record.h"

static const struct stall_lock *find_lock(const struct stall_locks *locks, uint64_t address)
{
	for (size_t i = 0; address && i < locks->count; i++)
		if (locks->locks[i].futex == address || locks->locks[i].address == address)
			return &locks->locks[i];
	return NULL;
}

static void write_name(const struct stall_trigger *trigger, const struct stall_locks *locks,
		       struct stall_json *json)
{
	const struct stall_lock *lock = find_lock(locks, trigger->address);

	stall_json_key(json, "name");
	if (!trigger->name && lock)
		stall_lock_name_write(lock, json);
	else
		stall_json_string(json, trigger->name);
}

static void write_since(const struct stall_trigger *trigger, const char *key, uint64_t now_ns,
			struct stall_json *json)
{
	stall_json_member_ms(json, key,
			     now_ns > trigger->crossed_ns ? now_ns - trigger->crossed_ns : 0);
}

void stall_trigger_write(const struct stall_trigger *trigger, const struct stall_locks *locks,
			 struct stall_json *json)
{
	stall_json_member_string(json, "reason", trigger->reason);
	stall_json_member_string(json, "kind", trigger->kind);
	write_name(trigger, locks, json);
	stall_json_key(json, "address");
	if (trigger->address)
		stall_json_hex(json, trigger->address);
	else
		stall_json_null(json);
	stall_json_member_int(json, "pid", trigger->pid);
	stall_json_member_int(json, "tid", trigger->tid);
	stall_json_member_ms(json, "length_ms", trigger->length_ns);
	stall_json_member_ms(json, "threshold_ms", trigger->threshold_ns);
	stall_json_member_uint(json, "waiters", trigger->waiters);
	write_since(trigger, "delay_ms", trigger->received_ns, json);
	write_since(trigger, "copied_ms", trigger->copied_ns, json);
	write_since(trigger, "finished_ms", stall_clock_ns(CLOCK_MONOTONIC), json);
	stall_json_member_uint(json, "suppressed", trigger->suppressed);
}

// SPDX-License-Identifier: Apache-2.0
#include "capture/trigger.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "capture/fields.h"
#include "capture/lock_record.h"

static const struct stall_lock *find_lock(const struct stall_locks *locks, uint64_t address)
{
	for (size_t i = 0; address && i < locks->count; i++)
		if (locks->locks[i].futex == address || locks->locks[i].address == address)
			return &locks->locks[i];
	return NULL;
}

// From the threshold on.
static uint64_t since(const struct stall_trigger *trigger, uint64_t now_ns)
{
	return now_ns > trigger->crossed_ns ? now_ns - trigger->crossed_ns : 0;
}

void stall_trigger_write(const struct stall_trigger *trigger, const struct stall_locks *locks,
			 struct stall_json *json)
{
	_cleanup_free_ char *storage = NULL;
	const struct stall_lock *lock = find_lock(locks, trigger->address);
	const char *name = trigger->name;

	if (!name && lock)
		name = stall_lock_name(lock, json, &storage);
	stall_put_trigger_reason(json, trigger->reason);
	stall_put_trigger_kind(json, trigger->kind);
	stall_put_trigger_name(json, name);
	stall_put_trigger_address(json, trigger->address, trigger->address);
	stall_put_trigger_pid(json, trigger->pid);
	stall_put_trigger_tid(json, trigger->tid);
	stall_put_trigger_length_ms(json, trigger->length_ns);
	stall_put_trigger_threshold_ms(json, trigger->threshold_ns);
	stall_put_trigger_waiters(json, trigger->waiters);
	stall_put_trigger_delay_ms(json, since(trigger, trigger->received_ns));
	stall_put_trigger_copied_ms(json, since(trigger, trigger->copied_ns));
	stall_put_trigger_finished_ms(json, since(trigger, stall_clock_ns(CLOCK_MONOTONIC)));
	stall_put_trigger_suppressed(json, trigger->suppressed);
}

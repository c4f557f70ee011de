// SPDX-License-Identifier: Apache-2.0
#include "capture/records.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "capture/fields.h"

void stall_host_write(struct stall_json *json, const struct stall_host *host)
{
	stall_put_capture_host(json);
	stall_json_open(json, '{');
	stall_put_host_name(json, host->name.nodename);
	stall_put_host_kernel(json, host->name.release);
	stall_put_host_arch(json, host->name.machine);
	stall_put_host_cpus(json, host->cpus);
	stall_json_close(json, '}');
}

void stall_time_write(struct stall_json *json, uint64_t wall_ns)
{
	char date[32], text[48];
	time_t seconds = wall_ns / 1000000000;
	struct tm tm;

	gmtime_r(&seconds, &tm);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text, sizeof(text), "%s.%06uZ", date, (unsigned int)(wall_ns / 1000 % 1000000));
	stall_put_capture_time(json, text);
	stall_put_capture_time_ns(json, wall_ns);
}

void stall_note_write(struct stall_json *json, const char *code, const char *message)
{
	stall_record_note(json);
	stall_put_note_code(json, code);
	stall_put_note_message(json, message);
}

// "LOCK_open", "buffer+0x40", or NULL. Free what is in *ret_storage. Out of memory: json has
// failed.
static const char *lock_name(const struct stall_lock *lock, struct stall_json *json,
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
	// A word that is no lock may have any 32 bits, and a reader accepts no negative number.
	if (!lock->owner_tid && lock->owner_raw)
		stall_put_lock_owner_raw(json, (uint32_t)lock->owner_raw);
	stall_put_lock_readers(json, lock->kind == STALL_LOCK_RWLOCK, lock->readers);
	stall_put_lock_waiters(json, lock->waiters);
	stall_put_lock_symbol(json, lock_name(lock, json, &name));
	stall_put_lock_stable(json, lock->stable);
	stall_put_lock_source(json, lock->source ? lock->source : "futex");
	if (lock->created)
		stall_put_lock_created(json, lock->created);
	if (lock->mode)
		stall_put_lock_mode(json, lock->mode);
}

static const struct stall_lock *find_lock(const struct stall_locks *locks, uint64_t address)
{
	for (size_t i = 0; address && i < locks->count; i++)
		if (locks->locks[i].futex == address || locks->locks[i].address == address)
			return &locks->locks[i];
	return NULL;
}

// Time since the threshold.
static uint64_t since(const struct stall_trigger *trigger, uint64_t now_ns)
{
	return now_ns > trigger->crossed_ns ? now_ns - trigger->crossed_ns : 0;
}

void stall_trigger_set_name(struct stall_trigger *trigger, const char *name)
{
	size_t length = name ? strnlen(name, sizeof(trigger->name) - 1) : 0;

	memcpy(trigger->name, name ? name : "", length);
	trigger->name[length] = '\0';
}

void stall_trigger_write(const struct stall_trigger *trigger, const struct stall_locks *locks,
			 struct stall_json *json)
{
	_cleanup_free_ char *storage = NULL;
	const struct stall_lock *lock = find_lock(locks, trigger->address);
	const char *name = *trigger->name ? trigger->name : NULL;

	if (!name && lock)
		name = lock_name(lock, json, &storage);
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

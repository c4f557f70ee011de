// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_roles.h"

#include <fnmatch.h>
#include <linux/futex.h>
#include <string.h>

#include "inproc/ring.h"
#include "lock/lock.h"
#include "proc/read_child.h"
#include "rings/ring_threads.h"
#include "waits/server_wait.h"

// The number of innermost frames that are searched for a wait function.
#define MAX_INNER_FRAMES 24
// All words that can hold the TID of an owner, and the value that was waited on.
#define MAX_TIDS ((STALL_FUTEX_BEFORE + STALL_FUTEX_AFTER) / 4 + 1)

struct stall_lock_wait stall_wait_of_record(const struct stall_wait_record *record,
					    uint32_t process)
{
	const bool is_object = record->operation & STALL_OPERATION_OBJECT;

	return (struct stall_lock_wait){
		.process = process,
		.address = record->key.id,
		.operation = is_object ? record->operation : record->operation & FUTEX_CMD_MASK,
		.private = record->operation & FUTEX_PRIVATE_FLAG,
		.value = (uint32_t)record->value,
	};
}

uint32_t stall_wait_operation_of(enum stall_wait_role role)
{
	switch (role) {
	case STALL_ROLE_MUTEX:
		return STALL_OPERATION_OBJECT | STALL_RING_MUTEX_LOCK;
	case STALL_ROLE_RWLOCK:
		return STALL_OPERATION_OBJECT | STALL_RING_RWLOCK_WRLOCK;
	default:
		return 0;
	}
}

static enum stall_object object_of(uint32_t operation)
{
	if (!(operation & STALL_OPERATION_OBJECT))
		return STALL_OBJECT_NONE;
	return stall_ring_object(operation & ~STALL_OPERATION_OBJECT);
}

bool stall_wait_read_word(const struct stall_wait_process *process, uint64_t address,
			  struct stall_futex *ret)
{
	struct stall_futex futex = {.address = address};

	if (address < STALL_FUTEX_BEFORE || address > UINT64_MAX - STALL_FUTEX_AFTER)
		return false;
	futex.readable = stall_read_child_range(&process->snapshot->processes[0].target,
						address - STALL_FUTEX_BEFORE, futex.bytes,
						sizeof(futex.bytes)) == sizeof(futex.bytes);
	*ret = futex;
	return futex.readable;
}

// The threads whose TIDs are around the word.
struct near_tids {
	struct stall_lock_tid tids[MAX_TIDS];
	struct stall_thread threads[MAX_TIDS];
	size_t count;
};

static void add_tid(struct near_tids *near, struct stall_wait_process *process, uint32_t number,
		    pid_t ns_tid)
{
	size_t at = 0;

	while (at < near->count && near->tids[at].ns_tid < ns_tid)
		at++;
	if (at < near->count && near->tids[at].ns_tid == ns_tid)
		return;
	pid_t tid = stall_wait_process_tid(process, ns_tid);
	if (!tid)
		return;
	memmove(&near->tids[at + 1], &near->tids[at], (near->count - at) * sizeof(near->tids[0]));
	near->threads[near->count] = (struct stall_thread){
		.tid = tid,
		.ns_tid = ns_tid,
		.process = number,
	};
	near->tids[at] = (struct stall_lock_tid){
		.process = number,
		.ns_tid = ns_tid,
		.thread = &near->threads[near->count],
	};
	near->count++;
}

static void find_near_tids(struct stall_wait_process *process, const struct stall_lock_wait *wait,
			   const struct stall_futex *futex, struct near_tids *near)
{
	near->count = 0;
	add_tid(near, process, wait->process, wait->value & FUTEX_TID_MASK);
	for (size_t at = 0; futex && futex->readable && at < sizeof(futex->bytes); at += 4) {
		uint32_t word;

		memcpy(&word, futex->bytes + at, sizeof(word));
		add_tid(near, process, wait->process, word & FUTEX_TID_MASK);
	}
}

static struct stall_lock_decoded decode(struct stall_wait_process *process,
					const struct stall_lock_wait *wait,
					enum stall_wait_name name, const struct stall_futex *futex,
					pid_t *ret_owner_tid)
{
	struct near_tids near;

	find_near_tids(process, wait, futex, &near);
	const struct stall_lock_tids tids = {.tids = near.tids, .count = near.count};
	const enum stall_object object = object_of(wait->operation);
	const struct stall_lock_decoded lock =
		object ? stall_lock_decode_object(object, wait->address, futex)
		       : stall_lock_decode(wait, name, futex, &tids);
	const struct stall_thread *owner = stall_lock_tids_find(&tids, wait->process, lock.owner);
	*ret_owner_tid = owner ? owner->tid : 0;
	return lock;
}

pid_t stall_wait_owner(struct stall_wait_process *process, const struct stall_lock_wait *wait,
		       enum stall_wait_name name, const struct stall_futex *futex)
{
	pid_t owner_tid;

	decode(process, wait, name, futex, &owner_tid);
	return owner_tid;
}

// Wait functions that frames show, and that need no uprobe.
static const struct {
	const char *pattern;
	enum stall_wait_role role;
} more_functions[] = {
	// InnoDB, storage/innobase/sync/sync0arr: where threads wait for the cell that they have
	// reserved.
	{"sync_array_wait_event", STALL_ROLE_MUTEX},
	{"_Z21sync_array_wait_event*", STALL_ROLE_MUTEX},
	// mysys/thr_lock: locks of tables, for reading or writing.
	{"wait_for_lock", STALL_ROLE_RWLOCK},
	{"_ZL13wait_for_lock*", STALL_ROLE_RWLOCK},
	// A commit waits until another thread has written or synced the redo log for it:
	// storage/innobase/log/log0log.c, log0write.cc; log0sync.cc of MariaDB.
	{"log_write_up_to", STALL_ROLE_COMMIT},
	{"_Z15log_write_up_to*", STALL_ROLE_COMMIT},
	{"_ZL1[78]log_wait_for_[fw]*", STALL_ROLE_COMMIT},
	{"_ZN17group_commit_lock7acquire*", STALL_ROLE_COMMIT},
	// Followers of a group commit of the binary log: sql/binlog.cc, rpl_commit_stage_manager.cc,
	// log.cc of MariaDB.
	{"_ZN13Stage_manager10enroll_for*", STALL_ROLE_COMMIT},
	{"_ZN20Commit_stage_manager10enroll_for*", STALL_ROLE_COMMIT},
	{"_ZN13MYSQL_BIN_LOG22queue_for_group_commit*", STALL_ROLE_COMMIT},
	{"_ZN15wait_for_commit22wait_for_prior_commit2*", STALL_ROLE_COMMIT},
	// Semi-synchronous replication: until a replica has it.
	{"_ZN18ReplSemiSyncMaster8commitTrx*", STALL_ROLE_COMMIT},
	{"_ZN21Repl_semi_sync_master10commit_trx*", STALL_ROLE_COMMIT},
};

static enum stall_wait_role role_by_frame(const char *name)
{
	for (size_t i = 0; i < sizeof(more_functions) / sizeof(more_functions[0]); i++)
		if (!fnmatch(more_functions[i].pattern, name, 0))
			return more_functions[i].role;
	return STALL_ROLE_UNKNOWN;
}

enum stall_wait_role stall_wait_role_of_function(const char *linkage)
{
	char name[512];
	size_t length = strcspn(linkage, ".@"); // a clone's suffix, a version

	if (length >= sizeof(name))
		return STALL_ROLE_UNKNOWN;
	memcpy(name, linkage, length);
	name[length] = '\0';
	for (size_t i = 0; i < stall_server_function_count; i++) {
		const struct stall_server_function *function = &stall_server_functions[i];
		// A function that only prepares a wait has returned by then.
		if (function->role == STALL_ROLE_UNKNOWN || function->prepares)
			continue;
		for (size_t j = 0; function->patterns[j]; j++)
			if (!fnmatch(function->patterns[j], name, 0))
				return function->role;
	}
	return role_by_frame(name);
}

// InnoDB waits for its mutexes and its rwlocks in one function: the caller shows which.
static bool is_rwlock_function(const char *symbol)
{
	return !strncmp(symbol, "rw_lock_", 8) || !strncmp(symbol, "pfs_rw_lock_", 12);
}

static enum stall_wait_role server_role(const struct stall_unwound *unwound,
					const struct stall_stack *stack)
{
	enum stall_wait_role role = STALL_ROLE_UNKNOWN;

	for (uint32_t i = 0; i < stack->count && i < MAX_INNER_FRAMES; i++) {
		const struct stall_frame *frame = &unwound->frames[stack->frames[i]];
		if (!frame->symbol)
			continue;
		if (role == STALL_ROLE_UNKNOWN)
			role = stall_wait_role_of_function(frame->linkage ? frame->linkage
									  : frame->symbol);
		else if (is_rwlock_function(frame->symbol))
			return STALL_ROLE_RWLOCK;
		if (role != STALL_ROLE_UNKNOWN && role != STALL_ROLE_MUTEX)
			return role;
	}
	return role;
}

static enum stall_wait_role role_of_kind(enum stall_lock_kind kind)
{
	switch (kind) {
	case STALL_LOCK_MUTEX:
	case STALL_LOCK_INTERNAL: // libc's own are mutexes without an owner
		return STALL_ROLE_MUTEX;
	case STALL_LOCK_RWLOCK:
		return STALL_ROLE_RWLOCK;
	case STALL_LOCK_COND:
		return STALL_ROLE_COND;
	case STALL_LOCK_SEM:
		return STALL_ROLE_SEM;
	case STALL_LOCK_JOIN:
		return STALL_ROLE_JOIN;
	case STALL_LOCK_ROW:
	case STALL_LOCK_TABLE:
	case STALL_LOCK_AUTO_INC:
		return STALL_ROLE_ROW_LOCK;
	case STALL_LOCK_METADATA:
		return STALL_ROLE_METADATA_LOCK;
	case STALL_LOCK_UNKNOWN:
		break;
	}
	return STALL_ROLE_UNKNOWN;
}

void stall_wait_identify(const struct stall_unwound *unwound, const struct stall_stack *stack,
			 const struct stall_lock_wait *wait, const struct stall_futex *futex,
			 struct stall_wait_process *process, struct stall_wait_identity *ret)
{
	struct stall_wait_identity identity = {
		.wait = *wait,
		.name = stall_lock_wait_name(unwound, stack),
	};
	const struct stall_lock_decoded lock =
		decode(process, wait, identity.name, futex, &identity.owner_tid);

	identity.object = lock.address;
	identity.role = role_of_kind(lock.kind);
	identity.has_owner = lock.kind == STALL_LOCK_MUTEX || lock.kind == STALL_LOCK_RWLOCK;
	if (lock.kind == STALL_LOCK_COND || lock.kind == STALL_LOCK_UNKNOWN) {
		enum stall_wait_role role = server_role(unwound, stack);
		if (role != STALL_ROLE_UNKNOWN) {
			identity.role = role;
			identity.has_owner = false;
			identity.owner_tid = 0;
		}
	}
	*ret = identity;
}

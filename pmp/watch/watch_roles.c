// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_roles.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_class.h"
#include "waits/server_wait.h"
#include "waits/wait_files.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"

#define MAX_READ_WORDS 64 // that threads wait on, for each line

struct stall_error *stall_watch_name_file(struct stall_watch *watch,
					  const struct stall_wait_file *file)
{
	const struct stall_wait_process *process =
		stall_wait_processes_find(&watch->processes, file->tgid);
	struct stall_wait_entry *entry;
	bool deleted;
	char *path;

	if (!process || file->key.kind >= STALL_WAIT_KINDS || file->key.kind == STALL_WAIT_FUTEX)
		return NULL;
	struct stall_error *err = stall_wait_table_get(watch->table, &file->key, &entry);
	if (err)
		return stall_watch_lose_entry(watch, err);
	err = stall_wait_file_path(stall_watch_target(process), file, &path, &deleted);
	if (err)
		return err;
	free(entry->name);
	entry->name = path;
	entry->class = stall_file_class(path, deleted);
	return NULL;
}

struct stall_error *stall_watch_find_file(struct stall_watch *watch,
					  const struct stall_wait_entry *entry)
{
	const struct stall_wait_source *source = &watch->source;
	struct stall_wait_file file;

	if (entry->name || !stall_wait_key_is_file(&entry->key) ||
	    !source->calls->find_file(source->state, &entry->key, &file))
		return NULL;
	return stall_watch_name_file(watch, &file);
}

// Takes the name over.
static void set_name(struct stall_wait_entry *entry, char *name)
{
	free(entry->name);
	entry->name = name;
}

static void set_role(struct stall_watch *watch, struct stall_wait_entry *entry,
		     enum stall_wait_role role)
{
	entry->examined = true;
	entry->role = role;
	entry->kind = stall_watch_kind_of(entry->key.kind, role);
	watch->source.calls->set_role(watch->source.state, &entry->key, role);
}

// What the uprobe recorded of this thread's wait, if the thread is still in that call.
static bool describe(struct stall_watch *watch, const struct stall_wait_item *item,
		     struct stall_server_wait *ret)
{
	const struct stall_wait_process *process = &watch->processes.processes[item->process];
	const struct stall_target *target = process->ended ? NULL : stall_watch_target(process);

	if (!item->record.server.function || !item->stack ||
	    !stall_server_wait_in_copy(&item->record.server, item->stack_address, item->stack,
				       item->stack_size))
		return false;
	return stall_server_wait_describe(&item->record.server, target, ret);
}

// Makes the entry of the lock that the thread really waits for. Without room, its word is used.
static struct stall_error *name_by(struct stall_watch *watch, struct stall_wait_entry *entry,
				   const struct stall_wait_record *record, const char *text)
{
	const struct stall_wait_key word = entry->key;
	enum stall_watch_kind kind = entry->kind;
	const struct stall_wait_key key = stall_wait_key_by_name(word.tgid, kind, text);
	struct stall_wait_entry *named;
	struct stall_error *err = stall_wait_table_get(watch->table, &key, &named);

	if (err)
		return stall_watch_lose_entry(watch, err);
	named->by_name = named->examined = true;
	named->kind = kind;
	named->object = 0;
	if (!named->name) {
		named->name = strdup(text);
		if (!named->name)
			return &stall_enomem;
	}
	// Making room may have moved or taken it.
	entry = stall_wait_table_find(watch->table, &word);
	if (entry) {
		if ((!entry->named.tgid || entry->named.id != key.id) &&
		    stall_watch_slot_is(watch, record->slot, record->seq))
			stall_watch_one_more_waits(watch, &key);
		entry->named = key;
		entry->named_seq = record->seq;
	}
	return NULL;
}

static struct stall_error *identify_from_server(struct stall_watch *watch,
						struct stall_wait_entry *entry,
						const struct stall_wait_item *item)
{
	struct stall_server_wait wait;

	// At the end of a wait the server has forgotten what it was for.
	if (item->record.seq != entry->named_seq)
		entry->named.tgid = 0;
	if (!describe(watch, item, &wait))
		return NULL;
	// The mutex of a table of locks is waited for in the same functions: libc's own locks keep
	// the role from their frames.
	bool own = entry->role == STALL_ROLE_MUTEX && entry->has_lock;
	if (own || wait.role == STALL_ROLE_UNKNOWN)
		return NULL;
	if (wait.role != entry->role)
		set_role(watch, entry, wait.role);
	if (stall_watch_kind_is_named(entry->kind))
		return wait.text[0] ? name_by(watch, entry, &item->record, wait.text) : NULL;
	if (wait.lock)
		entry->object = wait.lock;
	if (wait.text[0])
		set_name(entry, strdup(wait.text));
	return NULL;
}

static void set_identity(struct stall_watch *watch, struct stall_wait_entry *entry,
			 const struct stall_wait_identity *identity)
{
	entry->object = identity->object;
	entry->lock_wait = identity->wait;
	entry->lock_name = identity->name;
	entry->has_lock = identity->has_owner;
	set_role(watch, entry, identity->role);
}

struct stall_error *stall_watch_identify(struct stall_watch *watch, struct stall_wait_item *item)
{
	struct stall_wait_entry *entry;
	struct stall_error *err = stall_wait_table_get(watch->table, &item->record.key, &entry);

	if (err)
		return stall_watch_lose_entry(watch, err);
	err = stall_watch_find_file(watch, entry);
	if (err)
		return err;
	if (item->identified) {
		set_identity(watch, entry, &item->identity);
		set_name(entry, item->symbol);
		item->symbol = NULL;
	}
	return identify_from_server(watch, entry, item);
}

// Roles that the words alone prove.
static bool identify_by_words(struct stall_watch *watch, struct stall_wait_process *process,
			      struct stall_wait_entry *entry)
{
	const uint32_t operation =
		entry->in_flight ? entry->operation : stall_wait_operation_of(entry->ring_role);
	const struct stall_wait_record record = {
		.operation = operation,
		.value = entry->value,
		.key = entry->key,
	};
	const struct stall_lock_wait wait = stall_wait_of_record(&record, 0);
	const struct stall_unwound unwound = {};
	const struct stall_stack no_stack = {};
	const bool is_object = operation & STALL_OPERATION_OBJECT;
	struct stall_wait_identity identity;
	struct stall_futex futex = {};

	if (!watch->source.calls->read_word(watch->source.state, process, &entry->key, &futex) &&
	    !is_object)
		return false;
	stall_wait_identify(&unwound, &no_stack, &wait, &futex, process, &identity);
	// A lock of the server may sleep on a condition: only a stack shows that.
	if (identity.role == STALL_ROLE_UNKNOWN || (is_object && identity.role == STALL_ROLE_COND))
		return false;
	set_identity(watch, entry, &identity);
	return true;
}

static struct stall_error *name_lock(struct stall_watch *watch, struct stall_wait_process *process,
				     struct stall_wait_entry *entry)
{
	struct stall_data_query query = {.address = entry->object};
	struct stall_error *err =
		stall_worker_name_data(watch->worker, process->snapshot, &query, 1);

	if (!err && query.name && query.offset) {
		char *name = NULL;
		if (asprintf(&name, "%s+0x%" PRIx64, query.name, query.offset) < 0)
			err = &stall_enomem;
		free(query.name);
		query.name = err ? NULL : name;
	}
	if (!err)
		set_name(entry, query.name);
	return err;
}

// A role that another reader of the ring has set.
static bool identify_by_ring(struct stall_watch *watch, struct stall_wait_entry *entry)
{
	if (entry->ring_role == STALL_ROLE_UNKNOWN || stall_wait_operation_of(entry->ring_role))
		return false;
	set_role(watch, entry, entry->ring_role);
	return true;
}

// A role that the ring has needs no current waiter.
static bool needs_identification(const struct stall_wait_entry *entry)
{
	const bool was_waited_for =
		entry->ring_role != STALL_ROLE_UNKNOWN && entry->total.count != entry->before.count;

	return !entry->examined && !stall_wait_key_is_file(&entry->key) &&
	       (entry->in_flight || was_waited_for);
}

struct stall_error *stall_watch_identify_in_flight(struct stall_watch *watch)
{
	struct stall_error *err = NULL;
	struct stall_wait_entry *entry;
	int left = MAX_READ_WORDS;

	for (size_t i = 0; !err && left && (entry = stall_wait_table_at(watch->table, i)); i++) {
		if (!needs_identification(entry))
			continue;
		struct stall_wait_process *process =
			stall_wait_processes_find(&watch->processes, entry->key.tgid);
		if (!process)
			continue;
		left--;
		if (identify_by_words(watch, process, entry) || identify_by_ring(watch, entry))
			err = name_lock(watch, process, entry);
	}
	return err;
}

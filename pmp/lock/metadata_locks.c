// SPDX-License-Identifier: Apache-2.0
// Metadata locks (sql/mdl.cc): a thread waits on the condition variable of its own MDL_context, which
// names its ticket, which names the lock; the lock has a list of the tickets that were granted, and
// each names the context of its owner.
#include "lock/metadata_locks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "lock/server_memory.h"
#include "lock/thd.h"

#define MAX_TICKET 96	    // bytes
#define MAX_LOCK 1024	    // bytes
#define MAX_GRANTED 4096    // tickets of one lock
#define MAX_OWN_TICKETS 512 // of one context, by duration
#define MODES 16
#define DURATIONS 3
#define KEY_BYTES 387 // MAX_MDLKEY_LENGTH

struct layout {
	int32_t wait, cond, waiting_for;
	int32_t context, lock, type;
	int32_t next, base; // of the list of granted tickets; what its links point to in a ticket
	int32_t granted;    // the first link
	int32_t key, key_text, key_schema_length;
	int32_t thd_context;
	bool ring;   // the list ends where it began, at the link in the lock
	bool counts; // locks that hinder few others are only counted, and are in no list of the lock
	int32_t own, own_stride, own_next; // lists of a context's tickets
	int32_t owner, owner_base;	   // the context's pointer to a part of its THD
	int32_t strategy, incompatible;	   // of the lock: a table of 16-bit masks by mode
	bool has_owner, has_strategy;
	size_t ticket_size, lock_size; // that are read
};

#define FIELD(member, key, other)                                                                  \
	{                                                                                          \
		key, other, offsetof(struct layout, member)                                        \
	}
static const struct stall_layout_field fields[] = {
	FIELD(wait, "MDL_context.m_wait", NULL),
	FIELD(cond, "MDL_wait.m_COND_wait_status", NULL),
	FIELD(waiting_for, "MDL_context.m_waiting_for", NULL),
	FIELD(context, "MDL_ticket.m_ctx", NULL),
	FIELD(lock, "MDL_ticket.m_lock", NULL),
	FIELD(type, "MDL_ticket.m_type", NULL),
	FIELD(key, "MDL_lock.key", NULL),
	FIELD(key_text, "MDL_key.m_ptr", NULL),
	FIELD(key_schema_length, "MDL_key.m_db_name_length", NULL),
	FIELD(thd_context, "THD.mdl_context", NULL),
};
// MariaDB 10.6 and later keep granted tickets in an ilist, whose links point to an ilist_node.
static const struct stall_layout_field list_fields[] = {
	FIELD(next, "MDL_ticket.next_in_lock", NULL),
	FIELD(granted, "MDL_lock.m_granted.m_list.m_first", NULL),
};
static const struct stall_layout_field ring_fields[] = {
	FIELD(base, "MDL_ticket.ilist_node<void>", NULL),
	FIELD(next, "ilist_node<void>.next", NULL),
	FIELD(granted, "MDL_lock.m_granted.m_list.sentinel_", NULL),
};
static const struct stall_layout_field own_fields[] = {
	FIELD(own, "MDL_context.m_ticket_store.m_durations", NULL),
	FIELD(own_stride, "MDL_context.m_ticket_store.m_durations#stride", NULL),
	FIELD(own_next, "MDL_ticket.next_in_context", NULL),
};
static const struct stall_layout_field owner_fields[] = {
	FIELD(owner, "MDL_context.m_owner", NULL),
	FIELD(owner_base, "THD.MDL_context_owner", NULL),
};
// MySQL 5.5.
static const struct stall_layout_field thd_fields[] = {
	FIELD(owner, "MDL_context.m_thd", NULL),
};
static const struct stall_layout_field strategy_fields[] = {
	FIELD(strategy, "MDL_lock.m_strategy", NULL),
	FIELD(incompatible, "MDL_lock::MDL_lock_strategy.m_granted_incompatible", NULL),
};
#define COUNT(fields) (sizeof(fields) / sizeof((fields)[0]))

static size_t largest(size_t a, size_t b)
{
	return a > b ? a : b;
}

static bool load(const struct stall_layout *layout, struct layout *ret)
{
	*ret = (struct layout){};
	if (!stall_layout_fields(layout, fields, COUNT(fields), ret))
		return false;
	if (stall_layout_fields(layout, list_fields, COUNT(list_fields), ret)) {
		ret->base = 0;
	} else if (stall_layout_fields(layout, ring_fields, COUNT(ring_fields), ret)) {
		ret->next += ret->base;
		ret->ring = true;
	} else {
		return false;
	}
	ret->counts = stall_layout_value(layout, "mdl.counts", 0) &&
		      stall_layout_fields(layout, own_fields, COUNT(own_fields), ret);
	ret->has_owner = stall_layout_fields(layout, thd_fields, COUNT(thd_fields), ret) ||
			 stall_layout_fields(layout, owner_fields, COUNT(owner_fields), ret);
	ret->has_strategy =
		stall_layout_fields(layout, strategy_fields, COUNT(strategy_fields), ret);
	ret->ticket_size = largest(largest(ret->context, ret->lock), largest(ret->next, ret->type));
	ret->ticket_size = largest(ret->ticket_size, ret->own_next) + sizeof(uint64_t);
	ret->lock_size =
		largest(ret->granted + sizeof(uint64_t), ret->key + ret->key_text + KEY_BYTES);
	ret->lock_size = largest(ret->lock_size, ret->strategy + sizeof(uint64_t));
	return ret->ticket_size <= MAX_TICKET && ret->lock_size <= MAX_LOCK;
}

// Which modes keep a request waiting, by the requested mode: a bit for each mode.
struct rules {
	bool known;
	uint32_t scopes, backups; // namespaces of those kinds, a bit for each
	uint32_t object[MODES], scope[MODES], backup[MODES];
};

static void load_modes(const struct stall_layout *layout, const char *of, uint32_t *ret)
{
	char key[64];

	for (int i = 0; i < MODES; i++) {
		snprintf(key, sizeof(key), "mdl.%s.%d", of, i);
		ret[i] = (uint32_t)stall_layout_value(layout, key, 0);
	}
}

static void load_rules(const struct stall_layout *layout, struct rules *ret)
{
	int64_t scopes;

	*ret = (struct rules){.known = stall_layout_get(layout, "mdl.scopes", &scopes)};
	if (!ret->known)
		return;
	ret->scopes = (uint32_t)scopes;
	ret->backups = (uint32_t)stall_layout_value(layout, "mdl.backups", 0);
	load_modes(layout, "object", ret->object);
	load_modes(layout, "scope", ret->scope);
	load_modes(layout, "backup", ret->backup);
}

// A thread and the condition variable that it sleeps on, taken for that of a context.
struct request {
	uint32_t thread;
	uint64_t context, ticket, lock, ticket_again;
	uint32_t type;
	uint8_t bytes[MAX_TICKET];
};

struct lock {
	uint64_t address;
	size_t first, count; // requests
	uint8_t bytes[MAX_LOCK];
	bool readable;
	uint8_t space;
	bool ruled; // it is known which modes keep which requests waiting
	uint32_t modes[MODES];
	// The walk through its granted tickets.
	uint64_t link;
	uint32_t steps;
	uint8_t ticket[MAX_TICKET];
	// Who was found.
	uint64_t owner_context, owner_ticket;
	uint32_t owner;
};

struct search {
	struct stall_server_memory *memory;
	struct layout layout;
	struct rules rules;
	struct request *requests;
	size_t request_count;
	struct lock *locks;
	size_t lock_count;
	struct stall_read *reads; // as many as there are requests
};

static void search_deinit(struct search *search)
{
	free(search->requests);
	free(search->locks);
	free(search->reads);
}

static struct stall_error *list_requests(struct search *search)
{
	const struct stall_server_memory *memory = search->memory;
	const struct layout *layout = &search->layout;
	size_t most = memory->waiter_count * STALL_COND_STARTS + 1;

	search->requests = calloc(most, sizeof(*search->requests));
	search->reads = calloc(largest(most, memory->snapshot->thread_count * DURATIONS),
			       sizeof(*search->reads));
	if (!search->requests || !search->reads)
		return &stall_enomem;
	for (size_t i = 0; i < memory->waiter_count; i++) {
		const struct stall_memory_waiter *waiter = &memory->waiters[i];
		uint64_t thd = stall_thd_of(memory->thds, waiter->thread);

		for (int j = 0; j < STALL_COND_STARTS; j++) {
			uint64_t context =
				waiter->pair - stall_cond_starts[j] - layout->cond - layout->wait;
			if (thd && thd + layout->thd_context != context)
				continue;
			search->requests[search->request_count++] =
				(struct request){.thread = waiter->thread, .context = context};
		}
	}
	return NULL;
}

// Keeps those of which all was read.
static void keep(struct search *search)
{
	size_t kept = 0;

	for (size_t i = 0; i < search->request_count; i++)
		if (search->reads[i].done == search->reads[i].size)
			search->requests[kept++] = search->requests[i];
	search->request_count = kept;
}

static void read_tickets(struct search *search)
{
	const struct layout *layout = &search->layout;
	size_t kept = 0;

	for (size_t i = 0; i < search->request_count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->requests[i].context + layout->waiting_for,
			.buf = &search->requests[i].ticket,
			.size = sizeof(uint64_t),
		};
	stall_server_read_all(search->memory, search->reads, search->request_count);
	keep(search);
	for (size_t i = 0; i < search->request_count; i++)
		if (search->requests[i].ticket && !(search->requests[i].ticket & 7))
			search->requests[kept++] = search->requests[i];
	search->request_count = kept;
	for (size_t i = 0; i < search->request_count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->requests[i].ticket,
			.buf = search->requests[i].bytes,
			.size = layout->ticket_size,
		};
	stall_server_read_all(search->memory, search->reads, search->request_count);
	keep(search);
}

static int compare_requests(const void *a, const void *b)
{
	const struct request *x = a, *y = b;

	if (x->lock != y->lock)
		return x->lock < y->lock ? -1 : 1;
	return (x->thread > y->thread) - (x->thread < y->thread);
}

// A ticket that names the context which waits for it.
static void check_tickets(struct search *search)
{
	const struct layout *layout = &search->layout;
	size_t kept = 0;

	for (size_t i = 0; i < search->request_count; i++) {
		struct request *request = &search->requests[i];

		request->lock = stall_word(request->bytes, sizeof(request->bytes), layout->lock);
		request->type = stall_half(request->bytes, sizeof(request->bytes), layout->type);
		if (stall_word(request->bytes, sizeof(request->bytes), layout->context) ==
			    request->context &&
		    request->lock && !(request->lock & 7) && request->type < MODES)
			search->requests[kept++] = *request;
	}
	search->request_count = kept;
	qsort(search->requests, kept, sizeof(*search->requests), compare_requests);
}

// The table of its kind of namespace, or the one that the lock itself points to.
static void read_modes(const struct search *search, struct lock *lock)
{
	const struct layout *layout = &search->layout;
	const struct rules *rules = &search->rules;
	uint16_t masks[MODES];

	if (layout->has_strategy) {
		uint64_t strategy = stall_word(lock->bytes, sizeof(lock->bytes), layout->strategy);

		lock->ruled = strategy &&
			      stall_server_read(search->memory, strategy + layout->incompatible,
						masks, sizeof(masks));
		for (int i = 0; lock->ruled && i < MODES; i++)
			lock->modes[i] = masks[i];
		return;
	}
	lock->ruled = rules->known;
	const uint32_t *modes = rules->object;
	if (rules->backups >> lock->space & 1)
		modes = rules->backup;
	else if (rules->scopes >> lock->space & 1)
		modes = rules->scope;
	memcpy(lock->modes, modes, sizeof(lock->modes));
}

static struct stall_error *list_locks(struct search *search)
{
	const struct layout *layout = &search->layout;

	search->locks = calloc(search->request_count + 1, sizeof(*search->locks));
	if (!search->locks)
		return &stall_enomem;
	for (size_t i = 0; i < search->request_count; i++) {
		uint64_t address = search->requests[i].lock;

		if (!search->lock_count || search->locks[search->lock_count - 1].address != address)
			search->locks[search->lock_count++] =
				(struct lock){.address = address,
					      .first = i,
					      .owner = STALL_NO_THREAD};
		search->locks[search->lock_count - 1].count++;
	}
	for (size_t i = 0; i < search->lock_count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->locks[i].address,
			.buf = search->locks[i].bytes,
			.size = layout->lock_size,
		};
	stall_server_read_all(search->memory, search->reads, search->lock_count);
	for (size_t i = 0; i < search->lock_count; i++) {
		struct lock *lock = &search->locks[i];

		lock->readable = search->reads[i].done == search->reads[i].size;
		lock->link = stall_word(lock->bytes, sizeof(lock->bytes), layout->granted);
		stall_field(lock->bytes, sizeof(lock->bytes), layout->key + layout->key_text,
			    &lock->space, sizeof(lock->space));
		if (lock->readable && lock->space < 32)
			read_modes(search, lock);
		if (!lock->ruled)
			lock->link = 0;
	}
	return NULL;
}

// Whether a name that is a schema's or an object's alone is one of the server, and not that of a
// GET_LOCK(), a literal of a statement: MariaDB has it in place of a schema, MySQL behind none.
static bool is_of_server(const struct search *search, const struct lock *lock, size_t schema_length)
{
	return schema_length && (!search->rules.known || search->rules.scopes >> lock->space & 1);
}

// "schema\0object\0" behind the namespace.
static bool name_lock(const struct search *search, const struct lock *lock, char *ret, size_t size)
{
	const struct layout *layout = &search->layout;
	const char *schema = (const char *)lock->bytes + layout->key + layout->key_text + 1;
	size_t left = KEY_BYTES - 1, length = strnlen(schema, left);
	uint16_t schema_length;

	stall_field(lock->bytes, sizeof(lock->bytes), layout->key + layout->key_schema_length,
		    &schema_length, sizeof(schema_length));
	if (lock->space >= 32 || length != schema_length || length + 1 >= left ||
	    (length && !stall_is_text(schema, left)))
		return false;
	const char *object = schema + length + 1;
	if (*object && !stall_is_text(object, left - length - 1))
		return false;
	if (length && *object)
		snprintf(ret, size, "%.80s.%.80s", schema, object);
	else if ((length || *object) && !is_of_server(search, lock, length))
		snprintf(ret, size, "?");
	else if (length)
		snprintf(ret, size, "%.160s", schema);
	else if (lock->space == stall_layout_value(search->memory->layout, "mdl.global", -1))
		snprintf(ret, size, "global");
	else if (lock->space == stall_layout_value(search->memory->layout, "mdl.commit", -1))
		snprintf(ret, size, "commit");
	else if (lock->space == stall_layout_value(search->memory->layout, "mdl.backup.name", -1))
		snprintf(ret, size, "backup");
	return true;
}

// Whether a granted ticket of this mode keeps somebody else's request waiting.
static bool blocks(const struct search *search, const struct lock *lock, uint64_t context,
		   uint32_t type)
{
	for (size_t i = lock->first; i < lock->first + lock->count; i++) {
		const struct request *request = &search->requests[i];

		if (request->context != context && lock->modes[request->type] >> type & 1)
			return true;
	}
	return false;
}

static bool waits_here(const struct search *search, const struct lock *lock, uint64_t context)
{
	for (size_t i = lock->first; i < lock->first + lock->count; i++)
		if (search->requests[i].context == context)
			return true;
	return false;
}

// Whether the context says itself of which THD it is a part.
static bool names_thd(const struct search *search, uint64_t context)
{
	const struct layout *layout = &search->layout;
	uint64_t owner;

	return !layout->has_owner ||
	       (stall_server_read(search->memory, context + layout->owner, &owner, sizeof(owner)) &&
		owner == context - layout->thd_context + layout->owner_base);
}

// Takes a ticket that holds the lock. True: its owner is known, and who waits for the lock waits for
// this one in the end: an owner that waits for it too, for a stronger mode, is between them.
static bool consider(const struct search *search, struct lock *lock, uint64_t ticket,
		     const uint8_t *bytes)
{
	const struct layout *layout = &search->layout;
	uint64_t context = stall_word(bytes, MAX_TICKET, layout->context);
	uint32_t type = stall_half(bytes, MAX_TICKET, layout->type);

	if (!lock->ruled || type >= MODES || !blocks(search, lock, context, type) ||
	    waits_here(search, lock, context) || !names_thd(search, context))
		return false;
	uint32_t owner = stall_server_thread_of_thd(search->memory, context - layout->thd_context);
	if (owner == STALL_NO_THREAD)
		return false;
	lock->owner = owner;
	lock->owner_context = context;
	lock->owner_ticket = ticket;
	return true;
}

// One ticket further in each lock's list. False: all are at their ends.
static bool step(struct search *search)
{
	const struct layout *layout = &search->layout;
	size_t count = 0;

	for (size_t i = 0; i < search->lock_count; i++) {
		struct lock *lock = &search->locks[i];

		if (lock->link == lock->address + layout->granted && layout->ring)
			lock->link = 0;
		if (!lock->readable || lock->link & 7 || lock->steps++ >= MAX_GRANTED)
			lock->link = 0;
		if (lock->link)
			search->reads[count++] = (struct stall_read){
				.address = lock->link - layout->base,
				.buf = lock->ticket,
				.size = layout->ticket_size,
			};
	}
	stall_server_read_all(search->memory, search->reads, count);
	size_t at = 0;
	for (size_t i = 0; i < search->lock_count; i++) {
		struct lock *lock = &search->locks[i];

		if (!lock->link)
			continue;
		const struct stall_read *read = &search->reads[at++];
		lock->link = 0;
		// A list that changed under the walk leads to tickets of other locks.
		if (read->done < read->size ||
		    stall_word(lock->ticket, sizeof(lock->ticket), layout->lock) != lock->address)
			continue;
		if (!consider(search, lock, read->address, lock->ticket))
			lock->link = stall_word(lock->ticket, sizeof(lock->ticket), layout->next);
	}
	return count > 0 && !stall_server_late(search->memory);
}

// Tickets that were granted without the lock's list: a walk through those of each connection.
struct own_walk {
	uint64_t context, link;
	uint8_t ticket[MAX_TICKET];
};

static size_t list_own(const struct search *search, struct own_walk *walks,
		       struct stall_read *reads)
{
	const struct stall_server_memory *memory = search->memory;
	size_t count = 0;

	for (size_t i = 0; i < memory->snapshot->thread_count; i++) {
		uint64_t thd = stall_thd_of(memory->thds, (uint32_t)i);

		for (int j = 0; thd && j < DURATIONS; j++) {
			struct own_walk *walk = &walks[count];

			walk->context = thd + search->layout.thd_context;
			reads[count++] = (struct stall_read){
				.address = walk->context + search->layout.own +
					   (uint64_t)j * search->layout.own_stride,
				.buf = &walk->link,
				.size = sizeof(walk->link),
			};
		}
	}
	stall_server_read_all(memory, reads, count);
	for (size_t i = 0; i < count; i++)
		if (reads[i].done < reads[i].size)
			walks[i].link = 0;
	return count;
}

static void consider_own(struct search *search, const struct own_walk *walk)
{
	uint64_t address = stall_word(walk->ticket, sizeof(walk->ticket), search->layout.lock);

	for (size_t i = 0; i < search->lock_count; i++) {
		struct lock *lock = &search->locks[i];

		if (lock->address == address && lock->owner == STALL_NO_THREAD)
			consider(search, lock, walk->link, walk->ticket);
	}
}

static bool step_own(struct search *search, struct own_walk *walks, size_t walk_count)
{
	const struct layout *layout = &search->layout;
	size_t count = 0, at = 0;

	for (size_t i = 0; i < walk_count; i++) {
		if (walks[i].link & 7)
			walks[i].link = 0;
		if (walks[i].link)
			search->reads[count++] = (struct stall_read){
				.address = walks[i].link,
				.buf = walks[i].ticket,
				.size = layout->ticket_size,
			};
	}
	stall_server_read_all(search->memory, search->reads, count);
	for (size_t i = 0; i < walk_count; i++) {
		struct own_walk *walk = &walks[i];

		if (!walk->link)
			continue;
		const struct stall_read *read = &search->reads[at++];
		if (read->done < read->size || stall_word(walk->ticket, sizeof(walk->ticket),
							  layout->context) != walk->context) {
			walk->link = 0;
			continue;
		}
		consider_own(search, walk);
		walk->link = stall_word(walk->ticket, sizeof(walk->ticket), layout->own_next);
	}
	return count > 0 && !stall_server_late(search->memory);
}

static struct stall_error *walk_own(struct search *search)
{
	size_t most = search->memory->snapshot->thread_count * DURATIONS + 1;
	_cleanup_free_ struct own_walk *walks = calloc(most, sizeof(*walks));
	bool open = false;

	for (size_t i = 0; i < search->lock_count; i++)
		open |= search->locks[i].readable && search->locks[i].owner == STALL_NO_THREAD;
	if (!open || !search->layout.counts)
		return NULL;
	if (!walks)
		return &stall_enomem;
	size_t count = list_own(search, walks, search->reads);
	for (int i = 0; i < MAX_OWN_TICKETS && step_own(search, walks, count); i++)
		;
	return NULL;
}

// Whether all is still as it was read: the waiters wait for the same tickets, and the owners hold
// theirs.
static void check_again(struct search *search)
{
	const struct layout *layout = &search->layout;

	for (size_t i = 0; i < search->request_count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->requests[i].context + layout->waiting_for,
			.buf = &search->requests[i].ticket_again,
			.size = sizeof(uint64_t),
		};
	stall_server_read_all(search->memory, search->reads, search->request_count);
	for (size_t i = 0; i < search->lock_count; i++) {
		struct lock *lock = &search->locks[i];

		if (lock->owner != STALL_NO_THREAD &&
		    (!stall_server_read(search->memory, lock->owner_ticket, lock->ticket,
					layout->ticket_size) ||
		     stall_word(lock->ticket, sizeof(lock->ticket), layout->lock) !=
			     lock->address ||
		     stall_word(lock->ticket, sizeof(lock->ticket), layout->context) !=
			     lock->owner_context))
			lock->owner = STALL_NO_THREAD;
	}
}

static void report(const struct search *search)
{
	for (size_t i = 0; i < search->lock_count; i++) {
		const struct lock *lock = &search->locks[i];
		struct stall_memory_lock found = {
			.found = true,
			.kind = STALL_LOCK_METADATA,
			.address = lock->address,
			.owner = lock->owner,
		};

		if (!lock->readable || !name_lock(search, lock, found.name, sizeof(found.name)))
			continue;
		for (size_t j = lock->first; j < lock->first + lock->count; j++)
			if (search->requests[j].ticket_again == search->requests[j].ticket)
				search->memory->found[search->requests[j].thread] = found;
	}
}

struct stall_error *stall_metadata_locks_find(struct stall_server_memory *memory)
{
	_cleanup_(search_deinit) struct search search = {.memory = memory};

	if (!load(memory->layout, &search.layout))
		return NULL;
	load_rules(memory->layout, &search.rules);
	struct stall_error *err = list_requests(&search);
	if (err)
		return err;
	read_tickets(&search);
	check_tickets(&search);
	err = list_locks(&search);
	if (err)
		return err;
	while (step(&search))
		;
	err = walk_own(&search);
	if (err)
		return err;
	check_again(&search);
	report(&search);
	return NULL;
}

// SPDX-License-Identifier: Apache-2.0
// Locks of InnoDB's transactions (storage/innobase/lock/lock0lock): a transaction that waits has its
// request in wait_lock, and newer versions name a transaction that holds it up. MariaDB 10.6 and
// later let the thread sleep on a condition variable in its transaction; before, and in MySQL, it
// sleeps on the event of a slot, which names the query thread.
#include "lock/row_locks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "lock/server_memory.h"
#include "lock/thd.h"

#define MAX_LOCK 128	 // bytes
#define MAX_BITMAP 512	 // bytes: as many records as fit a page of 64 KB that has tiny ones
#define EARLY_BITMAP 128 // most are shorter than this
#define SLOT_BLOCK 512
#define MAX_SLOTS 16384
#define MAX_SLOT 128   // bytes
#define MAX_QUEUE 4096 // locks on pages of one hash cell
#define MAX_EVENT 256  // bytes

// lock0types.h, lock0lock.h.
#define MODE_MASK 0xfu
#define MODE_SHARED 2u
#define MODE_EXCLUSIVE 3u
#define MODE_AUTO_INC 4u
#define LOCK_WAIT 256u
#define LOCK_GAP 512u
#define LOCK_REC_NOT_GAP 1024u
#define LOCK_INSERT_INTENTION 2048u
#define SUPREMUM 1u // the heap number of the record behind all others

struct layout {
	int32_t wait_lock, thd;			     // in trx_t
	int32_t trx, index, mode, bits, table, size; // in a lock
	int32_t index_name, index_table, table_name;
	int32_t page_id, space, page; // in a lock: one of 8 bytes, or two words
	int32_t cond;		      // in trx_t
	int32_t blocker;	      // in trx_t
	int32_t slot_event, slot_thread, slot_size;
	int32_t graph, graph_trx; // que_thr_t, que_fork_t
	int32_t slots;		  // in the lock system: the pointer to them
	int32_t event_size;
	int32_t hash, hash_next; // in the lock system, in a lock
	int32_t cells, cell_count;
	uint32_t table_flag;
	int32_t table_holder; // in dict_table_t: who has its AUTO-INC lock
	bool has_table_holder;
	bool has_page_id, has_cond, has_blocker, has_slots, has_queue;
	bool wide; // bits is a word of 8 bytes
};

#define FIELD(member, key, other)                                                                  \
	{                                                                                          \
		key, other, offsetof(struct layout, member)                                        \
	}
#define LOCK "lock_struct lock_t"
#define TRX "trx_struct"
static const struct stall_layout_field fields[] = {
	FIELD(thd, "trx_t.mysql_thd", TRX),
	FIELD(trx, "ib_lock_t.trx", LOCK),
	FIELD(index, "ib_lock_t.index", LOCK),
	FIELD(mode, "ib_lock_t.type_mode", LOCK),
	FIELD(bits, "ib_lock_t.un_member.rec_lock.n_bits", LOCK),
	FIELD(table, "ib_lock_t.un_member.tab_lock.table", LOCK),
	FIELD(index_name, "dict_index_t.name", "dict_index_struct"),
	FIELD(index_table, "dict_index_t.table", "dict_index_struct"),
	FIELD(table_name, "dict_table_t.name", "dict_table_struct"),
};
static const struct stall_layout_field wait_lock_fields[] = {
	FIELD(wait_lock, "trx_t.lock.wait_lock", TRX),
};
static const struct stall_layout_field old_wait_lock_fields[] = {
	FIELD(wait_lock, "trx_t.wait_lock", TRX),
};
static const struct stall_layout_field page_id_fields[] = {
	FIELD(page_id, "ib_lock_t.un_member.rec_lock.page_id", LOCK),
};
static const struct stall_layout_field page_fields[] = {
	FIELD(space, "ib_lock_t.un_member.rec_lock.space", LOCK),
	FIELD(page, "ib_lock_t.un_member.rec_lock.page_no", LOCK),
};
static const struct stall_layout_field cond_fields[] = {
	FIELD(cond, "trx_t.lock.cond", NULL),
};
static const struct stall_layout_field wait_trx_fields[] = {
	FIELD(blocker, "trx_t.lock.wait_trx", NULL),
};
static const struct stall_layout_field blocking_trx_fields[] = {
	FIELD(blocker, "trx_t.lock.blocking_trx", NULL),
};
static const struct stall_layout_field slot_fields[] = {
	FIELD(slot_event, "srv_slot_t.event", "srv_slot_struct"),
	FIELD(slot_thread, "srv_slot_t.thr", "srv_slot_struct"),
	FIELD(graph, "que_thr_t.graph", "que_thr_struct"),
	FIELD(graph_trx, "que_fork_t.trx", "que_fork_struct"),
};
static const struct stall_layout_field waiting_fields[] = {
	FIELD(slots, "lock_sys_t.waiting_threads", NULL),
};
static const struct stall_layout_field queue_fields[] = {
	FIELD(hash, "lock_sys_t.rec_hash", "lock_sys_struct"),
	FIELD(hash_next, "ib_lock_t.hash", LOCK),
	FIELD(cells, "hash_table_t.array", "hash_table_struct"),
	FIELD(cell_count, "hash_table_t.n_cells", "hash_table_struct"),
};
static const struct stall_layout_field table_holder_fields[] = {
	FIELD(table_holder, "dict_table_t.autoinc_trx", "dict_table_struct"),
};
#define LOAD(layout, fields, ret)                                                                  \
	stall_layout_fields(layout, fields, sizeof(fields) / sizeof((fields)[0]), ret)

// The size of a structure by any of its names.
static int32_t size_of(const struct stall_layout *layout, const char *a, const char *b,
		       const char *c)
{
	int64_t size = stall_layout_value(layout, a, 0);

	if (!size)
		size = stall_layout_value(layout, b, 0);
	if (!size && c)
		size = stall_layout_value(layout, c, 0);
	return size > 0 && size < STALL_FIELD_MAX ? (int32_t)size : 0;
}

static bool fits(const struct layout *layout)
{
	return layout->size > 0 && layout->size <= MAX_LOCK && layout->trx + 8 <= layout->size &&
	       layout->index + 8 <= layout->size && layout->mode + 4 <= layout->size &&
	       layout->bits + (layout->wide ? 8 : 4) <= layout->size &&
	       layout->table + 8 <= layout->size && layout->page_id + 8 <= layout->size &&
	       layout->space + 8 <= layout->size && layout->page + 8 <= layout->size &&
	       layout->hash_next + 8 <= layout->size && layout->slot_event + 8 <= MAX_SLOT &&
	       layout->slot_thread + 8 <= MAX_SLOT;
}

static bool load(const struct stall_layout *from, struct layout *ret)
{
	*ret = (struct layout){};
	ret->size = size_of(from, "ib_lock_t#size", "lock_struct#size", "lock_t#size");
	if (!LOAD(from, fields, ret) ||
	    (!LOAD(from, wait_lock_fields, ret) && !LOAD(from, old_wait_lock_fields, ret)))
		return false;
	ret->has_page_id = LOAD(from, page_id_fields, ret);
	if (!ret->has_page_id && !LOAD(from, page_fields, ret))
		return false;
	ret->wide = stall_layout_value(from, "lock.n_bits#size", 4) == 8;
	ret->table_flag = (uint32_t)stall_layout_value(from, "lock.table", 16);
	ret->has_cond = LOAD(from, cond_fields, ret);
	ret->has_blocker = LOAD(from, wait_trx_fields, ret) || LOAD(from, blocking_trx_fields, ret);
	ret->slot_size = size_of(from, "srv_slot_t#size", "srv_slot_struct#size", NULL);
	ret->event_size = size_of(from, "os_event#size", "os_event_struct#size", NULL);
	ret->has_slots = LOAD(from, slot_fields, ret) && ret->slot_size && ret->event_size &&
			 ret->slot_size <= MAX_SLOT && ret->event_size <= MAX_EVENT;
	ret->has_table_holder = LOAD(from, table_holder_fields, ret);
	ret->has_queue = !ret->has_page_id && ret->wide && LOAD(from, queue_fields, ret);
	return fits(ret) && ret->table_flag && (ret->has_cond || ret->has_slots);
}

// Which record of which page. Two words in older versions, of which the low half counts.
struct record {
	uint32_t space, page, number;
};

struct request {
	uint32_t thread;
	uint64_t thr, trx, lock, blocker, thd;
	uint64_t lock_again, blocker_again;
	uint8_t bytes[MAX_LOCK];
	uint8_t bitmap[EARLY_BITMAP];
	size_t bitmap_size; // that was read
};

// What was found for one request may hold for the next: hundreds wait for the same record.
struct found {
	uint64_t index; // with this name
	char name[168];
	uint64_t trx; // of this thread
	uint32_t owner;
	bool in_queue; // by a request of this mode, for this record
	uint32_t mode;
	struct record record;
	uint64_t blocker, blocker_lock;
};

struct search {
	struct stall_server_memory *memory;
	struct layout layout;
	struct request *requests;
	size_t count, room;
	struct stall_read *reads;
	uint64_t queues; // address of lock_sys, 0: unknown
	struct found last;
};

static void search_deinit(struct search *search)
{
	free(search->requests);
	free(search->reads);
}

// A transaction for each place where the condition variable may begin.
static void list_by_cond(struct search *search)
{
	const struct stall_server_memory *memory = search->memory;

	for (size_t i = 0; i < memory->waiter_count; i++)
		for (int j = 0; j < STALL_COND_STARTS; j++)
			search->requests[search->count++] = (struct request){
				.thread = memory->waiters[i].thread,
				.trx = memory->waiters[i].pair - stall_cond_starts[j] -
				       search->layout.cond,
			};
}

static const struct stall_memory_waiter *waiter_of(const struct search *search, uint64_t event)
{
	const struct stall_server_memory *memory = search->memory;

	for (size_t i = 0; event && i < memory->waiter_count; i++) {
		const struct stall_memory_waiter *waiter = &memory->waiters[i];
		if (waiter->pair - event < (uint64_t)search->layout.event_size)
			return waiter;
	}
	return NULL;
}

// A thread for each slot whose event it sleeps on. Slots are taken from the first free one on.
static struct stall_error *list_by_slot(struct search *search, uint64_t slots)
{
	const struct layout *layout = &search->layout;
	size_t size = layout->slot_size;
	_cleanup_free_ uint8_t *block = calloc(SLOT_BLOCK, size);
	bool more = true;

	if (!block)
		return &stall_enomem;
	for (size_t first = 0; more && first < MAX_SLOTS; first += SLOT_BLOCK) {
		struct stall_read read = {.address = slots + first * size,
					  .buf = block,
					  .size = SLOT_BLOCK * size};

		stall_server_read_all(search->memory, &read, 1);
		more = false;
		for (size_t i = 0; i < read.done / size; i++) {
			const uint8_t *slot = block + i * size;
			const struct stall_memory_waiter *waiter =
				waiter_of(search, stall_word(slot, size, layout->slot_event));

			if (!waiter || search->count == search->room)
				continue;
			more = true;
			search->requests[search->count++] = (struct request){
				.thread = waiter->thread,
				.thr = stall_word(slot, size, layout->slot_thread),
			};
		}
	}
	return NULL;
}

// Reads a word of each request's object and keeps the requests of which it was read.
static void read_words(struct search *search, size_t from, int32_t offset, size_t to)
{
	size_t kept = 0;

	for (size_t i = 0; i < search->count; i++) {
		char *request = (char *)&search->requests[i];
		uint64_t address;

		memcpy(&address, request + from, sizeof(address));
		search->reads[i] = (struct stall_read){
			.address = address ? address + offset : 0,
			.buf = request + to,
			.size = sizeof(uint64_t),
		};
	}
	stall_server_read_all(search->memory, search->reads, search->count);
	for (size_t i = 0; i < search->count; i++)
		if (search->reads[i].done == sizeof(uint64_t))
			search->requests[kept++] = search->requests[i];
	search->count = kept;
}

static struct stall_error *list_requests(struct search *search)
{
	const struct layout *layout = &search->layout;
	struct stall_server_memory *memory = search->memory;
	uint64_t slots = 0;

	search->room = memory->waiter_count * STALL_COND_STARTS + 1;
	search->requests = calloc(search->room, sizeof(*search->requests));
	search->reads = calloc(search->room, sizeof(*search->reads));
	if (!search->requests || !search->reads)
		return &stall_enomem;
	if (layout->has_cond) {
		list_by_cond(search);
		return NULL;
	}
	if (LOAD(memory->layout, waiting_fields, &search->layout)) {
		uint64_t system = stall_server_pointer(memory, STALL_LOCK_SYS);
		if (!system ||
		    !stall_server_read(memory, system + layout->slots, &slots, sizeof(slots)))
			return NULL;
	} else {
		slots = stall_server_pointer(memory, STALL_SRV_MYSQL_TABLE);
	}
	if (!slots)
		return NULL;
	struct stall_error *err = list_by_slot(search, slots);
	if (err)
		return err;
	read_words(search, offsetof(struct request, thr), layout->graph,
		   offsetof(struct request, trx));
	read_words(search, offsetof(struct request, trx), layout->graph_trx,
		   offsetof(struct request, trx));
	return NULL;
}

static void read_bitmaps(struct search *search)
{
	for (size_t i = 0; i < search->count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->requests[i].lock + search->layout.size,
			.buf = search->requests[i].bitmap,
			.size = EARLY_BITMAP,
		};
	stall_server_read_all(search->memory, search->reads, search->count);
	for (size_t i = 0; i < search->count; i++)
		search->requests[i].bitmap_size = search->reads[i].done;
}

// A request that names the transaction which waits for it.
static void read_locks(struct search *search)
{
	const struct layout *layout = &search->layout;
	size_t kept = 0;

	read_words(search, offsetof(struct request, trx), layout->wait_lock,
		   offsetof(struct request, lock));
	for (size_t i = 0; i < search->count; i++)
		if (search->requests[i].lock && !(search->requests[i].lock & 7))
			search->requests[kept++] = search->requests[i];
	search->count = kept;
	for (size_t i = 0; i < search->count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->requests[i].lock,
			.buf = search->requests[i].bytes,
			.size = layout->size,
		};
	stall_server_read_all(search->memory, search->reads, search->count);
	kept = 0;
	for (size_t i = 0; i < search->count; i++) {
		const struct request *request = &search->requests[i];

		if (search->reads[i].done == (size_t)layout->size &&
		    stall_word(request->bytes, sizeof(request->bytes), layout->trx) ==
			    request->trx &&
		    stall_half(request->bytes, sizeof(request->bytes), layout->mode) & LOCK_WAIT)
			search->requests[kept++] = *request;
	}
	search->count = kept;
	read_bitmaps(search);
	if (layout->has_blocker)
		read_words(search, offsetof(struct request, trx), layout->blocker,
			   offsetof(struct request, blocker));
}

static bool read_record(const struct search *search, const struct request *request,
			struct record *ret)
{
	const uint8_t *lock = request->bytes;
	const struct layout *layout = &search->layout;
	uint64_t bits = layout->wide ? stall_word(lock, MAX_LOCK, layout->bits)
				     : stall_half(lock, MAX_LOCK, layout->bits);
	uint8_t bitmap[MAX_BITMAP] = {};
	size_t size = bits / 8;

	ret->space =
		stall_half(lock, MAX_LOCK, layout->has_page_id ? layout->page_id : layout->space);
	ret->page = stall_half(lock, MAX_LOCK,
			       layout->has_page_id ? layout->page_id + 4 : layout->page);
	if (!size || size > sizeof(bitmap))
		return false;
	if (size <= request->bitmap_size)
		memcpy(bitmap, request->bitmap, size);
	else if (!stall_server_read(search->memory, request->lock + layout->size, bitmap, size))
		return false;
	for (size_t i = 0; i < size; i++) {
		if (!bitmap[i])
			continue;
		ret->number = (uint32_t)(i * 8) + (uint32_t)__builtin_ctz(bitmap[i]);
		return true;
	}
	return false;
}

static bool has_record(const struct search *search, const uint8_t *lock, uint64_t address,
		       const struct record *record)
{
	const struct layout *layout = &search->layout;
	uint8_t byte;

	if (stall_half(lock, MAX_LOCK, layout->space) != record->space ||
	    stall_half(lock, MAX_LOCK, layout->page) != record->page ||
	    record->number >= stall_word(lock, MAX_LOCK, layout->bits))
		return false;
	return stall_server_read(search->memory, address + layout->size + record->number / 8, &byte,
				 sizeof(byte)) &&
	       byte >> record->number % 8 & 1;
}

// lock_rec_has_to_wait(): whether a request waits for this lock of another transaction.
static bool has_to_wait(uint32_t request, uint32_t lock, uint32_t number)
{
	uint32_t mode = request & MODE_MASK, other = lock & MODE_MASK;

	if (mode != MODE_EXCLUSIVE && other != MODE_EXCLUSIVE)
		return false;
	if ((number == SUPREMUM || request & LOCK_GAP) && !(request & LOCK_INSERT_INTENTION))
		return false;
	if (!(request & LOCK_INSERT_INTENTION) && lock & LOCK_GAP)
		return false;
	if (request & LOCK_GAP && lock & LOCK_REC_NOT_GAP)
		return false;
	return !(lock & LOCK_INSERT_INTENTION);
}

// ut_fold_ulint_pair() and ut_hash_ulint() of MySQL 5.1 to 5.6.
static uint64_t hash_of(const struct record *record, uint64_t cells)
{
	const uint64_t mask = 1463735687, mask2 = 1653893711;
	uint64_t space = record->space, page = record->page;
	uint64_t fold = ((((space ^ page ^ mask2) << 8) + space) ^ mask) + page;

	return (fold ^ mask2) % cells;
}

// The first lock of the queues that holds the record's. 0: there is none.
static uint64_t find_queue(const struct search *search, const struct record *record)
{
	const struct layout *layout = &search->layout;
	uint64_t hash, cells, array, address;

	if (!search->queues ||
	    !stall_server_read(search->memory, search->queues + layout->hash, &hash,
			       sizeof(hash)) ||
	    !stall_server_read(search->memory, hash + layout->cell_count, &cells, sizeof(cells)) ||
	    !stall_server_read(search->memory, hash + layout->cells, &array, sizeof(array)) ||
	    !cells ||
	    !stall_server_read(search->memory, array + hash_of(record, cells) * sizeof(address),
			       &address, sizeof(address)))
		return 0;
	return address;
}

// Whether the lock, which was granted to another transaction, keeps the request waiting.
static bool holds(const struct search *search, const struct request *request, const uint8_t *lock,
		  uint64_t address, const struct record *record)
{
	const struct layout *layout = &search->layout;
	uint32_t mode = stall_half(lock, MAX_LOCK, layout->mode);

	return !(mode & (LOCK_WAIT | layout->table_flag)) &&
	       stall_word(lock, MAX_LOCK, layout->trx) != request->trx &&
	       has_to_wait(stall_half(request->bytes, sizeof(request->bytes), layout->mode), mode,
			   record->number) &&
	       has_record(search, lock, address, record);
}

// Names the transaction that the request waits for.
static void find_in_queue(struct search *search, struct request *request,
			  const struct record *record)
{
	const struct layout *layout = &search->layout;
	struct found *last = &search->last;
	uint32_t mode = stall_half(request->bytes, sizeof(request->bytes), layout->mode);
	uint8_t lock[MAX_LOCK];

	if (last->in_queue && last->mode == mode && last->blocker != request->trx &&
	    !memcmp(&last->record, record, sizeof(*record))) {
		request->blocker = last->blocker;
		return;
	}
	uint64_t address = find_queue(search, record);
	for (int i = 0; i < MAX_QUEUE && address && !(address & 7); i++) {
		if (!stall_server_read(search->memory, address, lock, layout->size))
			return;
		if (holds(search, request, lock, address, record)) {
			request->blocker = stall_word(lock, MAX_LOCK, layout->trx);
			last->in_queue = true;
			last->mode = mode;
			last->record = *record;
			last->blocker = request->blocker;
			last->blocker_lock = address;
			return;
		}
		address = stall_word(lock, MAX_LOCK, layout->hash_next);
	}
}

// InnoDB's "schema/table", which may have a part "#P#..." behind it.
static void read_table_name(const struct search *search, uint64_t table, char *ret, size_t size)
{
	uint64_t address;

	*ret = '\0';
	if (!stall_server_read(search->memory, table + search->layout.table_name, &address,
			       sizeof(address)))
		return;
	stall_server_text(search->memory, address, ret, size);
	char *slash = strchr(ret, '/');
	if (slash)
		*slash = '.';
}

static void name_record(struct search *search, const uint8_t *lock, struct stall_memory_lock *ret)
{
	const struct layout *layout = &search->layout;
	struct found *last = &search->last;
	uint64_t index = stall_word(lock, MAX_LOCK, layout->index), table, name;
	char of[72], called[72];

	if (index != last->index) {
		last->index = index;
		last->name[0] = '\0';
		if (!stall_server_read(search->memory, index + layout->index_table, &table,
				       sizeof(table)) ||
		    !stall_server_read(search->memory, index + layout->index_name, &name,
				       sizeof(name)))
			return;
		read_table_name(search, table, of, sizeof(of));
		stall_server_text(search->memory, name, called, sizeof(called));
		if (*of && *called)
			snprintf(last->name, sizeof(last->name), "index %s of %s", called, of);
	}
	snprintf(ret->name, sizeof(ret->name), "%s", last->name);
}

// Records are no objects of their own. The same number for all that wait for the same record.
static uint64_t number_record(const struct record *record)
{
	uint64_t number = (uint64_t)record->space << 32 | record->page;

	number = (number ^ (uint64_t)record->number << 48) * UINT64_C(0x9e3779b97f4a7c15);
	number = (number ^ number >> 29 ^ record->number) * UINT64_C(0xbf58476d1ce4e5b9);
	return number ^ number >> 32;
}

static uint32_t owner_of(struct search *search, const struct request *request)
{
	struct found *last = &search->last;
	uint64_t thd;

	if (!request->blocker || request->blocker == request->trx || request->blocker & 7)
		return STALL_NO_THREAD;
	if (request->blocker == last->trx)
		return last->owner;
	if (!stall_server_read(search->memory, request->blocker + search->layout.thd, &thd,
			       sizeof(thd)))
		return STALL_NO_THREAD;
	last->trx = request->blocker;
	last->owner = stall_server_thread_of_thd(search->memory, thd);
	return last->owner;
}

// The table itself names who has its AUTO-INC lock.
static void find_by_table(const struct search *search, struct request *request, uint64_t table)
{
	const struct layout *layout = &search->layout;

	if (layout->has_blocker || !layout->has_table_holder ||
	    !stall_server_read(search->memory, table + layout->table_holder, &request->blocker,
			       sizeof(request->blocker)))
		request->blocker = layout->has_blocker ? request->blocker : 0;
}

static void report(struct search *search, struct request *request)
{
	const struct layout *layout = &search->layout;
	uint32_t mode = stall_half(request->bytes, sizeof(request->bytes), layout->mode);
	struct stall_memory_lock found = {.found = true};
	struct record record;

	if (mode & layout->table_flag) {
		found.address = stall_word(request->bytes, sizeof(request->bytes), layout->table);
		found.kind = (mode & (layout->table_flag - 1)) == MODE_AUTO_INC
				     ? STALL_LOCK_AUTO_INC
				     : STALL_LOCK_TABLE;
		read_table_name(search, found.address, found.name, sizeof(found.name));
		if (found.kind == STALL_LOCK_AUTO_INC)
			find_by_table(search, request, found.address);
	} else if (read_record(search, request, &record)) {
		found.kind = STALL_LOCK_ROW;
		found.address = number_record(&record);
		name_record(search, request->bytes, &found);
		if (!layout->has_blocker && layout->has_queue)
			find_in_queue(search, request, &record);
	} else {
		return;
	}
	found.owner = owner_of(search, request);
	if (found.owner == request->thread)
		found.owner = STALL_NO_THREAD;
	search->memory->found[request->thread] = found;
}

// A transaction must be the thread's own, where that can be known.
static struct stall_error *keep_own(struct search *search)
{
	_cleanup_free_ uint64_t *thds = calloc(search->count + 1, sizeof(*thds));
	_cleanup_free_ uint32_t *threads = calloc(search->count + 1, sizeof(*threads));
	size_t kept = 0;

	if (!thds || !threads)
		return &stall_enomem;
	read_words(search, offsetof(struct request, trx), search->layout.thd,
		   offsetof(struct request, thd));
	for (size_t i = 0; i < search->count; i++)
		thds[i] = search->requests[i].thd;
	struct stall_error *err =
		stall_server_threads_of_thds(search->memory, thds, search->count, threads);
	for (size_t i = 0; !err && i < search->count; i++)
		if (threads[i] == STALL_NO_THREAD || threads[i] == search->requests[i].thread)
			search->requests[kept++] = search->requests[i];
	search->count = kept;
	return err;
}

// Whether the lock that a queue named as the holder is there still.
static bool holds_still(const struct search *search)
{
	const struct found *last = &search->last;
	uint8_t lock[MAX_LOCK];

	return !last->in_queue ||
	       (stall_server_read(search->memory, last->blocker_lock, lock, search->layout.size) &&
		stall_word(lock, MAX_LOCK, search->layout.trx) == last->blocker &&
		has_record(search, lock, last->blocker_lock, &last->record));
}

// Forgets what is no more as it was read.
static void check_again(struct search *search)
{
	struct stall_memory_lock *found = search->memory->found;
	bool holds = holds_still(search);

	for (size_t i = 0; i < search->count; i++)
		search->requests[i].blocker_again = search->requests[i].lock_again = 0;
	for (size_t i = 0; i < search->count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->requests[i].trx + search->layout.wait_lock,
			.buf = &search->requests[i].lock_again,
			.size = sizeof(uint64_t),
		};
	stall_server_read_all(search->memory, search->reads, search->count);
	for (size_t i = 0; i < search->count; i++)
		search->reads[i] = (struct stall_read){
			.address = search->requests[i].trx + search->layout.blocker,
			.buf = &search->requests[i].blocker_again,
			.size = sizeof(uint64_t),
		};
	if (search->layout.has_blocker)
		stall_server_read_all(search->memory, search->reads, search->count);
	for (size_t i = 0; i < search->count; i++) {
		const struct request *request = &search->requests[i];

		if (request->lock_again != request->lock)
			found[request->thread].found = false;
		if (search->layout.has_blocker ? request->blocker_again != request->blocker
					       : !holds)
			found[request->thread].owner = STALL_NO_THREAD;
	}
}

struct stall_error *stall_row_locks_find(struct stall_server_memory *memory)
{
	_cleanup_(search_deinit) struct search search = {.memory = memory};

	if (!load(memory->layout, &search.layout))
		return NULL;
	struct stall_error *err = list_requests(&search);
	if (err)
		return err;
	read_locks(&search);
	err = keep_own(&search);
	if (err)
		return err;
	if (search.count && !search.layout.has_blocker && search.layout.has_queue)
		search.queues = stall_server_pointer(memory, STALL_LOCK_SYS);
	for (size_t i = 0; i < search.count && !stall_server_late(memory); i++)
		report(&search, &search.requests[i]);
	check_again(&search);
	return NULL;
}

// SPDX-License-Identifier: Apache-2.0
// InnoDB's wait array (storage/innobase/sync/sync0arr): a cell for each thread that sleeps on the event
// of a latch. A rw_lock_t names the thread that holds it in mode X or SX; a mutex has no owner.
#include "lock/sync_cells.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "lock/server_memory.h"

#define MAX_ARRAYS 1024
#define CELL_BLOCK 128
#define MAX_CELLS 65536
#define MAX_CELL 256  // bytes
#define MAX_LATCH 512 // bytes
#define MAX_EVENT 256 // bytes
#define MAX_LINE 100000

struct layout {
	int32_t reserved, cells, array; // sync_array_t
	int32_t object, type, thread;	// sync_cell_t
	int32_t cell_size;
	int32_t lock_word, writer, event, wait_ex_event; // rw_lock_t
	int32_t recursive, reader, file, line;
	int32_t mutex_event, mutex_file, mutex_line;
	int32_t latch_size, mutex_size, event_size;
	bool has_recursive, has_reader, has_site, has_mutex, has_mutex_site;
	bool embedded;	   // the events are parts of the latch
	bool narrow;	   // lock_word is an int32_t
	int64_t one, half; // what a holder in mode X, and one in mode SX, takes from lock_word
	uint32_t line_mask;
	int32_t of_index, index_name, index_table, table_name;
	bool has_index;
};

#define FIELD(member, key, other)                                                                  \
	{                                                                                          \
		key, other, offsetof(struct layout, member)                                        \
	}
#define LATCH "rw_lock_struct"
static const struct stall_layout_field fields[] = {
	FIELD(reserved, "sync_array_t.n_reserved", "sync_array_struct"),
	FIELD(cells, "sync_array_t.n_cells", "sync_array_struct"),
	FIELD(array, "sync_array_t.array", "sync_array_struct"),
	FIELD(object, "sync_cell_t.wait_object", "sync_cell_struct"),
	FIELD(type, "sync_cell_t.request_type", "sync_cell_struct"),
	FIELD(thread, "sync_cell_t.thread", "sync_cell_struct"),
	FIELD(lock_word, "rw_lock_t.lock_word", LATCH),
	FIELD(writer, "rw_lock_t.writer_thread", LATCH),
	FIELD(event, "rw_lock_t.event", LATCH),
	FIELD(wait_ex_event, "rw_lock_t.wait_ex_event", LATCH),
};
static const struct stall_layout_field recursive_fields[] = {
	FIELD(recursive, "rw_lock_t.recursive", LATCH),
};
static const struct stall_layout_field reader_fields[] = {
	FIELD(reader, "rw_lock_t.reader_thread", LATCH),
};
static const struct stall_layout_field site_fields[] = {
	FIELD(file, "rw_lock_t.cfile_name", LATCH),
	FIELD(line, "rw_lock_t.cline", LATCH),
};
static const struct stall_layout_field mutex_fields[] = {
	FIELD(mutex_event, "ib_mutex_t.event", "mutex_struct"),
};
static const struct stall_layout_field mutex_site_fields[] = {
	FIELD(mutex_file, "ib_mutex_t.cfile_name", "mutex_struct"),
	FIELD(mutex_line, "ib_mutex_t.cline", "mutex_struct"),
};
static const struct stall_layout_field index_fields[] = {
	FIELD(of_index, "dict_index_t.lock", "dict_index_struct"),
	FIELD(index_name, "dict_index_t.name", "dict_index_struct"),
	FIELD(index_table, "dict_index_t.table", "dict_index_struct"),
	FIELD(table_name, "dict_table_t.name", "dict_table_struct"),
};
#define LOAD(layout, fields, ret)                                                                  \
	stall_layout_fields(layout, fields, sizeof(fields) / sizeof((fields)[0]), ret)

static int32_t size_of(const struct stall_layout *layout, const char *key, const char *other,
		       int32_t most)
{
	int64_t size = stall_layout_value(layout, key, stall_layout_value(layout, other, 0));

	return size > 0 && size <= most ? (int32_t)size : 0;
}

static bool fits(const struct layout *layout)
{
	int32_t latch = layout->latch_size - 8, cell = layout->cell_size - 8;

	return layout->event_size && layout->lock_word <= latch && layout->writer <= latch &&
	       layout->event <= latch && layout->wait_ex_event <= latch &&
	       layout->recursive <= latch && layout->reader <= latch && layout->file <= latch &&
	       layout->line <= latch && layout->object <= cell && layout->type <= cell &&
	       layout->thread <= cell && layout->mutex_event <= layout->mutex_size - 8 &&
	       layout->mutex_file <= layout->mutex_size - 8 &&
	       layout->mutex_line <= layout->mutex_size - 8;
}

static bool load(const struct stall_layout *from, struct layout *ret)
{
	*ret = (struct layout){};
	if (!LOAD(from, fields, ret))
		return false;
	ret->cell_size = size_of(from, "sync_cell_t#size", "sync_cell_struct#size", MAX_CELL);
	ret->latch_size = size_of(from, "rw_lock_t#size", "rw_lock_struct#size", MAX_LATCH);
	ret->mutex_size = size_of(from, "ib_mutex_t#size", "mutex_struct#size", MAX_LATCH);
	ret->event_size = size_of(from, "os_event#size", "os_event_struct#size", MAX_EVENT);
	ret->has_recursive = LOAD(from, recursive_fields, ret);
	ret->has_reader = LOAD(from, reader_fields, ret);
	ret->has_site = LOAD(from, site_fields, ret);
	ret->has_index = LOAD(from, index_fields, ret);
	ret->has_mutex = ret->mutex_size && LOAD(from, mutex_fields, ret);
	ret->has_mutex_site = ret->has_mutex && LOAD(from, mutex_site_fields, ret);
	if (!ret->mutex_size)
		ret->mutex_size = 8;
	ret->embedded = stall_layout_value(from, "rw_lock.events_inside", 0);
	ret->narrow = stall_layout_value(from, "rw_lock.lock_word#size", 8) == 4;
	ret->one = stall_layout_value(from, "rw_lock.x_decrement", 0);
	ret->half = stall_layout_value(from, "rw_lock.sx_decrement", 0);
	ret->line_mask = (uint32_t)stall_layout_value(from, "rw_lock.cline#mask", UINT32_MAX);
	return ret->cell_size && ret->latch_size && ret->one > 0 && fits(ret);
}

struct search {
	struct stall_server_memory *memory;
	struct layout layout;
	// The latch that was read last: all its waiters see it in one state.
	uint64_t latch;
	bool readable;
	uint8_t first[MAX_LATCH], second[MAX_LATCH];
	struct stall_memory_lock found;
};

// "/home/.../storage/innobase/dict/dict0dict.c": without the folders, which are those of the build.
static void read_site(const struct search *search, uint64_t file, uint32_t line, char *ret,
		      size_t size)
{
	char path[256];

	stall_server_text(search->memory, file, path, sizeof(path));
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	if (!strchr(name, '.') || !line || line >= MAX_LINE ||
	    snprintf(ret, size, "%s:%u", name, line) >= (int)size)
		*ret = '\0';
}

// A latch that dict0dict made may be that of an index: then there are names where it is one.
static void read_index(const struct search *search, uint64_t latch, struct stall_memory_lock *ret)
{
	const struct layout *layout = &search->layout;
	uint64_t index = latch - (uint64_t)layout->of_index, table, name, table_name;
	char called[72], of[72];

	if (!layout->has_index || strncmp(ret->created, "dict0dict.c", 11) ||
	    !stall_server_read(search->memory, index + layout->index_table, &table,
			       sizeof(table)) ||
	    !stall_server_read(search->memory, index + layout->index_name, &name, sizeof(name)) ||
	    !stall_server_read(search->memory, table + layout->table_name, &table_name,
			       sizeof(table_name)))
		return;
	stall_server_text(search->memory, name, called, sizeof(called));
	stall_server_text(search->memory, table_name, of, sizeof(of));
	char *slash = strchr(of, '/');
	if (!*called || !slash)
		return;
	*slash = '.';
	snprintf(ret->name, sizeof(ret->name), "index %s of %s", called, of);
}

static bool is_in(const struct search *search, uint64_t pair, uint64_t event)
{
	return event && pair - event < (uint64_t)search->layout.event_size;
}

// Whether the thread sleeps on an event of the latch: it was so when its stack was copied.
static bool sleeps_on(const struct search *search, const struct stall_memory_waiter *waiter,
		      uint64_t address, const uint8_t *latch)
{
	const struct layout *layout = &search->layout;

	if (layout->embedded)
		return is_in(search, waiter->pair, address + layout->event) ||
		       is_in(search, waiter->pair, address + layout->wait_ex_event);
	return is_in(search, waiter->pair, stall_word(latch, MAX_LATCH, layout->event)) ||
	       is_in(search, waiter->pair, stall_word(latch, MAX_LATCH, layout->wait_ex_event));
}

// What lock_word says. It begins with `one`; each reader takes 1, one in mode SX `half`, one in mode X
// `one`, and a second time of the same thread again as much.
struct state {
	bool held; // in mode X or SX, by the writer
	bool valid;
	const char *mode;
	int64_t readers;
};

static struct state state_of(const struct layout *layout, int64_t word)
{
	int64_t one = layout->one, half = layout->half;

	if (word > one || word < -2047 * one) // X_LOCK_DECR times the recursion
		return (struct state){};
	if (word > half)
		return (struct state){.valid = true, .readers = one - word};
	if (half && word > 0)
		return (struct state){.held = true,
				      .valid = true,
				      .mode = "SX",
				      .readers = half - word};
	if (word == 0)
		return (struct state){.held = true, .valid = true, .mode = "exclusive"};
	// Readers are still inside, and the next writer waits for them; or one holds it repeatedly.
	if (half ? word > -half : word > -one)
		return (struct state){.valid = true, .mode = "wait exclusive", .readers = -word};
	if (half && word > -one && word < -half)
		return (struct state){.valid = true,
				      .mode = "wait exclusive",
				      .readers = -word - half};
	return (struct state){.held = true, .valid = true, .mode = "exclusive"};
}

static int64_t lock_word_of(const struct layout *layout, const uint8_t *latch)
{
	if (layout->narrow)
		return (int32_t)stall_half(latch, MAX_LATCH, layout->lock_word);
	return (int64_t)stall_word(latch, MAX_LATCH, layout->lock_word);
}

// `writer_thread` counts only while it is set: in older versions a flag says so.
static uint32_t holder_of(const struct search *search, const struct state *state,
			  const uint8_t *latch)
{
	const struct layout *layout = &search->layout;
	uint8_t recursive;

	stall_field(latch, MAX_LATCH, layout->recursive, &recursive, sizeof(recursive));
	if (state->held && (!layout->has_recursive || recursive))
		return stall_server_thread_of(search->memory,
					      stall_word(latch, MAX_LATCH, layout->writer));
	// All readers are XORed: one of them is itself.
	if (!state->held && layout->has_reader && state->readers == 1)
		return stall_server_thread_of(search->memory,
					      stall_word(latch, MAX_LATCH, layout->reader));
	return STALL_NO_THREAD;
}

static void read_latch(struct search *search, uint64_t address)
{
	const struct layout *layout = &search->layout;
	const uint8_t *latch = search->second;

	search->latch = address;
	search->readable =
		stall_server_read(search->memory, address, search->first, layout->latch_size) &&
		stall_server_read(search->memory, address, search->second, layout->latch_size);
	if (!search->readable)
		return;
	const struct state before = state_of(layout, lock_word_of(layout, search->first));
	const struct state state = state_of(layout, lock_word_of(layout, latch));
	search->readable = state.valid;
	search->found = (struct stall_memory_lock){
		.found = true,
		.kind = STALL_LOCK_RWLOCK,
		.address = address,
		.owner = holder_of(search, &state, latch),
		.readers = (uint32_t)state.readers,
		.mode = state.mode,
		.doubtful = before.held != state.held || before.readers != state.readers ||
			    stall_word(search->first, sizeof(search->first), layout->writer) !=
				    stall_word(latch, MAX_LATCH, layout->writer),
	};
	if (layout->has_site)
		read_site(search, stall_word(latch, MAX_LATCH, layout->file),
			  stall_half(latch, MAX_LATCH, layout->line) & layout->line_mask,
			  search->found.created, sizeof(search->found.created));
	read_index(search, address, &search->found);
}

static void report_latch(struct search *search, const struct stall_memory_waiter *waiter,
			 uint64_t address)
{
	if (search->latch != address)
		read_latch(search, address);
	if (!search->readable || !sleeps_on(search, waiter, address, search->second))
		return;
	struct stall_memory_lock *found = &search->memory->found[waiter->thread];
	*found = search->found;
	if (found->owner == waiter->thread)
		found->owner = STALL_NO_THREAD;
}

static void report_mutex(const struct search *search, const struct stall_memory_waiter *waiter,
			 uint64_t address)
{
	const struct layout *layout = &search->layout;
	uint8_t mutex[MAX_LATCH];
	struct stall_memory_lock found = {
		.found = true,
		.kind = STALL_LOCK_INTERNAL,
		.address = address,
		.owner = STALL_NO_THREAD,
	};

	if (!layout->has_mutex ||
	    !stall_server_read(search->memory, address, mutex, layout->mutex_size) ||
	    !is_in(search, waiter->pair, stall_word(mutex, sizeof(mutex), layout->mutex_event)))
		return;
	if (layout->has_mutex_site)
		read_site(search, stall_word(mutex, sizeof(mutex), layout->mutex_file),
			  stall_half(mutex, sizeof(mutex), layout->mutex_line), found.created,
			  sizeof(found.created));
	search->memory->found[waiter->thread] = found;
}

// Codes of the requested mode: up to 5.6 (sync0sync.h), from 5.7 on (sync0types.h).
static bool is_rwlock_type(uint32_t type)
{
	return (type >= 351 && type <= 353) || (type >= 2 && type <= 5);
}

static const struct stall_memory_waiter *waiter_of(const struct search *search, uint64_t pthread)
{
	const struct stall_server_memory *memory = search->memory;
	uint32_t thread = stall_server_thread_of(memory, pthread);

	for (size_t i = 0; thread != STALL_NO_THREAD && i < memory->waiter_count; i++)
		if (memory->waiters[i].thread == thread)
			return &memory->waiters[i];
	return NULL;
}

static void examine(struct search *search, const uint8_t *cell, uint64_t object)
{
	const struct layout *layout = &search->layout;
	const struct stall_memory_waiter *waiter =
		waiter_of(search, stall_word(cell, (size_t)layout->cell_size, layout->thread));

	if (!waiter || object & 7)
		return;
	if (is_rwlock_type(stall_half(cell, (size_t)layout->cell_size, layout->type)))
		report_latch(search, waiter, object);
	else
		report_mutex(search, waiter, object);
}

// Cells are taken from the first free one on, so that those in use come early.
static struct stall_error *walk(struct search *search, uint64_t array)
{
	const struct layout *layout = &search->layout;
	size_t size = layout->cell_size, seen = 0;
	_cleanup_free_ uint8_t *block = calloc(CELL_BLOCK, size);
	uint64_t reserved, cells, first;

	if (!block)
		return &stall_enomem;
	if (!stall_server_read(search->memory, array + layout->reserved, &reserved, 8) ||
	    !stall_server_read(search->memory, array + layout->cells, &cells, 8) ||
	    !stall_server_read(search->memory, array + layout->array, &first, 8))
		return NULL;
	if (cells > MAX_CELLS)
		cells = MAX_CELLS;
	for (size_t at = 0; at < cells && seen < reserved; at += CELL_BLOCK) {
		size_t count = cells - at < CELL_BLOCK ? cells - at : CELL_BLOCK;
		struct stall_read read = {.address = first + at * size,
					  .buf = block,
					  .size = count * size};

		stall_server_read_all(search->memory, &read, 1);
		if (read.done < read.size)
			return NULL;
		for (size_t i = 0; i < count; i++) {
			uint64_t object = stall_word(block + i * size, size, layout->object);

			seen += !!object;
			if (object)
				examine(search, block + i * size, object);
		}
	}
	return NULL;
}

struct stall_error *stall_sync_cells_find(struct stall_server_memory *memory)
{
	struct search search = {.memory = memory};
	uint64_t arrays[MAX_ARRAYS], count = 1;

	if (!load(memory->layout, &search.layout))
		return NULL;
	uint64_t only = stall_server_pointer(memory, STALL_SYNC_PRIMARY_WAIT_ARRAY);
	if (only)
		return walk(&search, only);
	uint64_t many = stall_server_pointer(memory, STALL_SYNC_WAIT_ARRAY);
	count = stall_server_pointer(memory, STALL_SYNC_ARRAY_SIZE); // a word of the same size
	if (!many || !count || count > MAX_ARRAYS ||
	    !stall_server_read(memory, many, arrays, count * sizeof(arrays[0])))
		return NULL;
	struct stall_error *err = NULL;
	for (size_t i = 0; !err && i < count && !stall_server_late(memory); i++)
		err = walk(&search, arrays[i]);
	return err;
}

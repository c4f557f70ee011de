// SPDX-License-Identifier: Apache-2.0
// Layouts are those of x86-64 binaries, each tried on the server that is named with it. Memory is
// trusted only where two places in it agree: a lock that names its transaction, a ticket that names
// its context.
#include "waits/server_wait.h"

#include <stdio.h>
#include <string.h>

#include "proc/read_child.h"

// Argument numbers are those of the functions' declarations; `this` is the first of a method.
const struct stall_server_function stall_server_functions[] = {
	// storage/innobase/sync/sync0arr: a cell is reserved for the latch (2) and its type (3) by
	// who is about to wait, who then waits for the cell unless the latch has become free.
	{
		.name = "sync_array_reserve_cell",
		.patterns = {"sync_array_reserve_cell", "_Z23sync_array_reserve_cell*"},
		.role = STALL_ROLE_MUTEX,
		.prepares = true,
		.waits_in = {"sync_array_wait_event", "_Z21sync_array_wait_event*"},
		.lock_arg = 2,
		.second_arg = 3,
		.detail = STALL_DETAIL_LATCH,
		.versions = "MySQL 5.1 to 9.7, MariaDB to 10.5",
	},
	{
		.name = "srw_mutex_impl::wait_and_lock",
		.patterns = {"_ZN14srw_mutex_implILb?EE13wait_and_lockEv"},
		.role = STALL_ROLE_MUTEX,
		.lock_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "ssux_lock_impl::rd_wait",
		.patterns = {"_ZN14ssux_lock_implILb?EE7rd_waitEv"},
		.role = STALL_ROLE_RWLOCK,
		.lock_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "ssux_lock_impl::wr_wait",
		.patterns = {"_ZN14ssux_lock_implILb?EE7wr_waitEj"},
		.role = STALL_ROLE_RWLOCK,
		.lock_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "srv_suspend_mysql_thread",
		.patterns = {"srv_suspend_mysql_thread"},
		.role = STALL_ROLE_ROW_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_QUERY_THREAD,
		.versions = "MySQL 5.1 and 5.5",
	},
	{
		.name = "lock_wait_suspend_thread",
		.patterns = {"_Z24lock_wait_suspend_threadP9que_thr_t"},
		.role = STALL_ROLE_ROW_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_QUERY_THREAD,
		.versions = "MySQL 5.6 to 9.7, MariaDB to 10.5",
	},
	{
		.name = "lock_wait",
		.patterns = {"_Z9lock_waitP9que_thr_t"},
		.role = STALL_ROLE_ROW_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_QUERY_THREAD,
		.versions = "MariaDB 10.6 and later",
	},
	{
		.name = "MDL_wait::timed_wait",
		.patterns = {"_ZN8MDL_wait10timed_waitE*"},
		.role = STALL_ROLE_METADATA_LOCK,
		.lock_arg = 1,
		.detail = STALL_DETAIL_MDL_WAIT,
		.versions = "MySQL 5.5 to 9.7, MariaDB",
	},
	// Deadlocks. In 5.5, which is C, transactions are weighed against each other only to choose
	// the victim of a cycle; later versions, which are C++, do it elsewhere too.
	{
		.name = "trx_weight_ge",
		.patterns = {"trx_weight_ge"},
		.event = true,
		.lock_arg = 1,
		.second_arg = 2,
		.versions = "MySQL 5.5",
	},
	{
		.name = "lock_deadlock_select_victim",
		.patterns = {"_ZL27lock_deadlock_select_victim*"},
		.event = true,
		.versions = "MySQL 5.6",
	},
	{
		.name = "DeadlockChecker::select_victim",
		.patterns = {"_ZNK15DeadlockChecker13select_victimEv"},
		.event = true,
		.versions = "MySQL 5.7 to 8.0.17, MariaDB 10.2 to 10.5",
	},
	{
		.name = "lock_notify_about_deadlock",
		.patterns = {"_Z26lock_notify_about_deadlock*"},
		.event = true,
		.second_arg = 2,
		.versions = "MySQL 8.0.18 to 9.7",
	},
	{
		.name = "Deadlock::report",
		.patterns = {"_ZN8DeadlockL6reportE*", "_ZN8Deadlock6reportE*"},
		.event = true,
		.second_arg = 1,
		.versions = "MariaDB 10.6 and later",
	},
};
const size_t stall_server_function_count =
	sizeof(stall_server_functions) / sizeof(stall_server_functions[0]);

_Static_assert(sizeof(stall_server_functions) / sizeof(stall_server_functions[0]) <= 64,
	       "STALL_BPF_UPROBE_FUNCTIONS");

#define MAX_NAME 64
#define MAX_LINE 100000

bool stall_server_wait_holds(const struct stall_wait_server *server, uint64_t stack_pointer,
			     uint64_t stacked_return_address)
{
	return !server->prepared && server->function &&
	       server->function <= stall_server_function_count && server->sp >= stack_pointer &&
	       stacked_return_address == server->return_address;
}

bool stall_server_wait_in_copy(const struct stall_wait_server *server, uint64_t stack_address,
			       const uint8_t *stack, size_t stack_size)
{
	__u64 words[1 + STALL_FRAME_WORDS];
	uint64_t at = server->sp - stack_address;

	if (stack_size < sizeof(words) || at > stack_size - sizeof(words))
		return false;
	memcpy(words, stack + at, sizeof(words));
	return stall_server_wait_holds(server, stack_address, words[0]) &&
	       stall_frame_hash(words + 1) == server->frame;
}

static bool read_all(const struct stall_target *target, uint64_t address, void *buf, size_t size)
{
	return address && stall_read_child_range(target, address, buf, size) == size;
}

static uint64_t word(const uint8_t *bytes, size_t offset)
{
	uint64_t value;

	memcpy(&value, bytes + offset, sizeof(value));
	return value;
}

static uint32_t half(const uint8_t *bytes, size_t offset)
{
	uint32_t value;

	memcpy(&value, bytes + offset, sizeof(value));
	return value;
}

static bool read_word(const struct stall_target *target, uint64_t address, uint64_t *ret)
{
	return read_all(target, address, ret, sizeof(*ret));
}

// A name that ends within `size` and can be printed. UTF-8 is accepted.
static bool is_name(const char *name, size_t size)
{
	size_t length = strnlen(name, size);

	for (size_t i = 0; i < length; i++) {
		if ((unsigned char)name[i] < ' ' || name[i] == 0x7f)
			return false;
	}
	return length > 0 && length < size;
}

static bool read_name(const struct stall_target *target, uint64_t address, char *ret, size_t size)
{
	// It may be at the end of a mapping.
	size_t got = address ? stall_read_child_range(target, address, ret, size) : 0;

	return got > 0 && is_name(ret, got);
}

static bool is_source_file(const char *name)
{
	static const char *const ends[] = {".c", ".cc", ".ic", ".h", ".cpp"};
	const char *dot = strrchr(name, '.');

	for (size_t i = 0; dot && i < sizeof(ends) / sizeof(ends[0]); i++) {
		if (strcmp(dot, ends[i]) == 0)
			return true;
	}
	return false;
}

// The name of a source file without its directories, which are those of the build machine.
static bool read_source_file(const struct stall_target *target, uint64_t address, char *ret,
			     size_t size)
{
	char path[256];

	if (!read_name(target, address, path, sizeof(path)) || !is_source_file(path))
		return false;
	const char *slash = strrchr(path, '/');
	return snprintf(ret, size, "%s", slash ? slash + 1 : path) < (int)size;
}

// Codes of the lock mode that a thread requests of a latch: RW_LOCK_EX, _SHARED, _WAIT_EX up to 5.6
// (sync0sync.h), RW_LOCK_SX, _X_WAIT, _S, _X from 5.7 on (sync0types.h). All else is a mutex.
static bool is_rwlock_type(uint64_t type)
{
	return (type >= 351 && type <= 353) || (type >= 2 && type <= 5);
}

#define LATCH_BYTES 120

// The place in an InnoDB latch of the line that created it.
static const struct latch_layout {
	bool rwlock;
	uint8_t file, line;
	uint32_t line_mask; // the line is a bit field, or a word of which this is enough
} latch_layouts[] = {
	{false, 40, 48, ~0U},	 // MySQL 5.5.9, struct mutex_struct
	{true, 80, 112, 0x3fff}, // MySQL 5.5.9, struct rw_lock_struct
};

static void describe_latch(const struct stall_wait_server *server,
			   const struct stall_target *target, struct stall_server_wait *ret)
{
	uint8_t latch[LATCH_BYTES] = {};
	char file[MAX_NAME];

	ret->lock = server->lock;
	if (is_rwlock_type(server->arg))
		ret->role = STALL_ROLE_RWLOCK;
	if (!target || !server->lock ||
	    stall_read_child_range(target, server->lock, latch, sizeof(latch)) < 64)
		return;
	for (size_t i = 0; i < sizeof(latch_layouts) / sizeof(latch_layouts[0]); i++) {
		const struct latch_layout *layout = &latch_layouts[i];
		uint32_t line = half(latch, layout->line) & layout->line_mask;

		if (layout->rwlock != is_rwlock_type(server->arg) || line == 0 ||
		    line >= MAX_LINE ||
		    !read_source_file(target, word(latch, layout->file), file, sizeof(file)))
			continue;
		snprintf(ret->text, sizeof(ret->text), "created at %s:%u", file, line);
		return;
	}
}

// From a query thread to the lock that its transaction waits for. The fields behind the lock's
// first differ in width too.
static const struct row_layout {
	uint16_t graph, trx;	   // que_thr_t.graph, que_t.trx
	uint16_t wait_lock;	   // in trx_t
	uint8_t mode, index;	   // type_mode and index in lock_t; its first field is trx
	uint8_t space, page, bits; // of the record lock; `space` is the table of a table lock
	uint8_t width;		   // of space, page, bits
	uint8_t size;		   // of lock_t: the bitmap follows
	uint8_t name, table;	   // dict_index_t.name, .table_name
	uint8_t table_name;	   // dict_table_t.name; 0 unknown
} row_layouts[] = {
	{72, 80, 616, 24, 40, 48, 56, 64, 8, 72, 16, 24, 16}, // MySQL 5.5.9
	{72, 80, 160, 80, 24, 40, 44, 48, 4, 88, 16, 24, 0},  // MySQL 9.7
};

#define LOCK_BYTES 96
#define LOCK_MODE_TABLE 16 // lock0types.h, lock0lock.h
#define LOCK_MODE_REC 32
#define LOCK_MODE_WAIT 256
#define MAX_BITMAP 512 // bytes: as many records as fit a page of 64 KB that has tiny ones

static uint64_t number(const uint8_t *bytes, size_t offset, size_t width)
{
	return width == 8 ? word(bytes, offset) : half(bytes, offset);
}

// "test/t1" in InnoDB is shown as "test.t1".
static void as_sql(char *table)
{
	char *slash = strchr(table, '/');

	if (slash)
		*slash = '.';
}

// A lock that waits is for one record: the one bit that is set.
static bool read_record(const struct stall_target *target, uint64_t bitmap, uint64_t bits,
			uint32_t *ret)
{
	uint8_t bytes[MAX_BITMAP] = {};
	size_t size = bits / 8;

	if (size == 0 || size > sizeof(bytes) || !read_all(target, bitmap, bytes, size))
		return false;
	for (size_t i = 0; i < size; i++) {
		if (!bytes[i])
			continue;
		*ret = (uint32_t)(i * 8) + (uint32_t)__builtin_ctz(bytes[i]);
		return true;
	}
	return false;
}

static void describe_record(const struct row_layout *layout, uint64_t address, const uint8_t *lock,
			    const struct stall_target *target, struct stall_server_wait *ret)
{
	uint64_t index = word(lock, layout->index),
		 bits = number(lock, layout->bits, layout->width);
	uint64_t page = number(lock, layout->page, layout->width), name_at, table_at;
	char name[MAX_NAME], table[MAX_NAME];
	uint32_t record;

	if (page > UINT32_MAX || !read_word(target, index + layout->name, &name_at) ||
	    !read_word(target, index + layout->table, &table_at) ||
	    !read_name(target, name_at, name, sizeof(name)) ||
	    !read_name(target, table_at, table, sizeof(table)) ||
	    !read_record(target, address + layout->size, bits, &record))
		return;
	as_sql(table);
	snprintf(ret->text, sizeof(ret->text), "%s (%s) page %u record %u", table, name,
		 (uint32_t)page, record);
}

static void describe_table(const struct row_layout *layout, const uint8_t *lock,
			   const struct stall_target *target, struct stall_server_wait *ret)
{
	char table[MAX_NAME];
	uint64_t at;

	if (!layout->table_name ||
	    !read_word(target, word(lock, layout->space) + layout->table_name, &at) ||
	    !read_name(target, at, table, sizeof(table)))
		return;
	as_sql(table);
	snprintf(ret->text, sizeof(ret->text), "table %s", table);
}

static bool describe_row_lock(const struct row_layout *layout, uint64_t query_thread,
			      const struct stall_target *target, struct stall_server_wait *ret)
{
	uint64_t graph, trx, address;
	uint8_t lock[LOCK_BYTES];

	if (!read_word(target, query_thread + layout->graph, &graph) ||
	    !read_word(target, graph + layout->trx, &trx) ||
	    !read_word(target, trx + layout->wait_lock, &address) ||
	    !read_all(target, address, lock, sizeof(lock)) || word(lock, 0) != trx)
		return false;
	uint32_t mode = half(lock, layout->mode);
	if (!(mode & LOCK_MODE_WAIT))
		return false;
	ret->lock = address;
	if (mode & LOCK_MODE_REC)
		describe_record(layout, address, lock, target, ret);
	else if (mode & LOCK_MODE_TABLE)
		describe_table(layout, lock, target, ret);
	return true;
}

static void describe_query_thread(const struct stall_wait_server *server,
				  const struct stall_target *target, struct stall_server_wait *ret)
{
	for (size_t i = 0; target && i < sizeof(row_layouts) / sizeof(row_layouts[0]); i++) {
		if (describe_row_lock(&row_layouts[i], server->lock, target, ret))
			return;
	}
}

// From the context of a connection to the metadata lock that it waits for.
static const struct mdl_layout {
	uint16_t waiting_for;  // in MDL_context, which begins with its MDL_wait
	uint8_t context, lock; // in MDL_ticket
	uint8_t key;	       // of the key in MDL_lock: m_length, m_db_name_length
	uint8_t name;	       // of the key's text in MDL_lock: a byte, the schema, the object
	const char *whole[10]; // locks without a name, by that byte
} mdl_layouts[] = {
	// MySQL 5.5.9
	{264, 48, 56, 8, 12, {[0] = "global", [7] = "commit"}},
	// MariaDB 10.11
	{264, 56, 64, 0, 8, {[0] = "backup"}},
	// MySQL 9.7
	{328, 48, 56, 0, 6, {[0] = "global", [1] = "backup", [9] = "commit"}},
};

#define MDL_BYTES 512 // of a lock, from its start: the key is at most 392 long

// "schema\0object\0", each of at most 64 characters of up to 3 bytes.
static bool describe_key(const struct mdl_layout *layout, const uint8_t *lock,
			 struct stall_server_wait *ret)
{
	const char *schema = (char *)lock + layout->name + 1;
	size_t left = MDL_BYTES - layout->name - 1, length = strnlen(schema, left);
	uint8_t space = lock[layout->name];
	uint16_t schema_length;

	memcpy(&schema_length, lock + layout->key + 2, sizeof(schema_length));
	if (space > 32 || length != schema_length || length + 1 >= left ||
	    (length && !is_name(schema, left)))
		return false;
	const char *object = schema + length + 1;
	if (*object && !is_name(object, left - length - 1))
		return false;
	if (*object)
		snprintf(ret->text, sizeof(ret->text), "%.70s%s%.70s", schema, length ? "." : "",
			 object);
	else if (length)
		snprintf(ret->text, sizeof(ret->text), "%.140s", schema);
	else if (space < sizeof(layout->whole) / sizeof(layout->whole[0]) && layout->whole[space])
		snprintf(ret->text, sizeof(ret->text), "%s", layout->whole[space]);
	return true;
}

static bool describe_ticket(const struct mdl_layout *layout, uint64_t context,
			    const struct stall_target *target, struct stall_server_wait *ret)
{
	uint64_t ticket, address, of_context;
	uint8_t lock[MDL_BYTES];

	if (!read_word(target, context + layout->waiting_for, &ticket) ||
	    !read_word(target, ticket + layout->context, &of_context) || of_context != context ||
	    !read_word(target, ticket + layout->lock, &address) ||
	    !read_all(target, address, lock, sizeof(lock)) || !describe_key(layout, lock, ret))
		return false;
	ret->lock = address;
	return true;
}

static void describe_mdl_wait(const struct stall_wait_server *server,
			      const struct stall_target *target, struct stall_server_wait *ret)
{
	for (size_t i = 0; target && i < sizeof(mdl_layouts) / sizeof(mdl_layouts[0]); i++) {
		if (describe_ticket(&mdl_layouts[i], server->lock, target, ret))
			return;
	}
}

bool stall_server_wait_describe(const struct stall_wait_server *server,
				const struct stall_target *target, struct stall_server_wait *ret)
{
	if (!server->function || server->function > stall_server_function_count)
		return false;
	const struct stall_server_function *function =
		&stall_server_functions[server->function - 1];
	struct stall_server_wait wait = {.function = function, .role = function->role};

	switch (function->detail) {
	case STALL_DETAIL_NONE:
		wait.lock = server->lock;
		break;
	case STALL_DETAIL_LATCH:
		describe_latch(server, target, &wait);
		break;
	case STALL_DETAIL_QUERY_THREAD:
		describe_query_thread(server, target, &wait);
		break;
	case STALL_DETAIL_MDL_WAIT:
		describe_mdl_wait(server, target, &wait);
		break;
	}
	*ret = wait;
	return true;
}

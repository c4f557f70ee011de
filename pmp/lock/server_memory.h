// SPDX-License-Identifier: Apache-2.0
// Reads of a server's own locks in its memory. Nothing that is read is trusted: each step bounds what
// it follows, and what two places do not agree on is left out.
#ifndef STALL_SERVER_MEMORY_H
#define STALL_SERVER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/layout.h"
#include "lock/lock.h"
#include "snapshot/snapshot.h"

#define STALL_NO_THREAD UINT32_MAX
// A field of a structure lies before this, or the layout is not used.
#define STALL_FIELD_MAX 65536

// What a thread waits for, according to the server's memory.
struct stall_memory_lock {
	bool found;
	enum stall_lock_kind kind;
	uint64_t address;
	uint32_t owner; // index of a thread, or STALL_NO_THREAD
	bool doubtful;	// the words changed while they were read
	uint32_t readers;
	const char *mode; // static, or NULL
	char name[168];
	char created[72];
};

// A thread of the process that sleeps on a word of its memory.
struct stall_memory_waiter {
	uint32_t thread;
	uint64_t pair; // the 8 bytes that hold the word
};

enum stall_server_global_name {
	STALL_SERVER_VERSION,
	STALL_SYNC_PRIMARY_WAIT_ARRAY,
	STALL_SYNC_WAIT_ARRAY,
	STALL_SYNC_ARRAY_SIZE,
	STALL_LOCK_SYS,
	STALL_SRV_MYSQL_TABLE,
	STALL_SERVER_GLOBALS,
};

struct stall_server_global {
	uint64_t address, size; // 0: there is none
};

struct stall_thds;
struct stall_thread_numbers;

struct stall_server_memory {
	const struct stall_snapshot *snapshot;
	const struct stall_layout *layout;
	const struct stall_server_global *globals;
	uint32_t process;
	uint64_t until_ns; // CLOCK_MONOTONIC
	const struct stall_thds *thds;
	const struct stall_thread_numbers *numbers;
	struct stall_memory_waiter *waiters;
	size_t waiter_count;
	struct stall_memory_lock *found; // per thread of the snapshot
};

// Fields by their place in a structure of int32_t, from the layout.
struct stall_layout_field {
	const char *key;
	const char
		*other; // names of the structure in other versions, with a blank between; or NULL
	size_t at;
};
// False: one of them is missing, or is no offset.
bool stall_layout_fields(const struct stall_layout *layout, const struct stall_layout_field *fields,
			 size_t count, void *ret);
// Of a key that may be missing.
int64_t stall_layout_value(const struct stall_layout *layout, const char *key, int64_t otherwise);

// Reads all of `reads` that it can: a short one has less than its size in `done`.
void stall_server_read_all(const struct stall_server_memory *memory, struct stall_read *reads,
			   size_t count);
bool stall_server_read(const struct stall_server_memory *memory, uint64_t address, void *buf,
		       size_t size);
bool stall_server_late(const struct stall_server_memory *memory);

// The address that a global pointer has now. 0: there is none.
uint64_t stall_server_pointer(const struct stall_server_memory *memory,
			      enum stall_server_global_name name);

// Where a condition variable begins, from the pair of words that its waiters sleep on: glibc up to
// 2.24 (and a caller that knows its start), 2.41 and later, 2.25 to 2.40.
#define STALL_COND_STARTS 3
extern const uint8_t stall_cond_starts[STALL_COND_STARTS];
#define STALL_COND_BYTES 48

// The thread whose pthread_self() is this, STALL_NO_THREAD: none of this snapshot.
uint32_t stall_server_thread_of(const struct stall_server_memory *memory, uint64_t pthread);
// The same by the kernel's id in the target's own pid namespace.
uint32_t stall_server_thread_of_tid(const struct stall_server_memory *memory, uint32_t ns_tid);

// At most `size` - 1 printable characters, UTF-8 too. "": there is no such text.
void stall_server_text(const struct stall_server_memory *memory, uint64_t address, char *ret,
		       size_t size);
bool stall_is_text(const char *text, size_t size);

// A field of a structure of which `bytes` was read. The offsets are those of a layout, which may be
// of anybody: what is not in the bytes is 0.
static inline void stall_field(const uint8_t *bytes, size_t bytes_size, int64_t offset, void *ret,
			       size_t size)
{
	memset(ret, 0, size);
	if (offset >= 0 && size <= bytes_size && (uint64_t)offset <= bytes_size - size)
		memcpy(ret, bytes + offset, size);
}

static inline uint64_t stall_word(const uint8_t *bytes, size_t size, int64_t offset)
{
	uint64_t value;

	stall_field(bytes, size, offset, &value, sizeof(value));
	return value;
}

static inline uint32_t stall_half(const uint8_t *bytes, size_t size, int64_t offset)
{
	uint32_t value;

	stall_field(bytes, size, offset, &value, sizeof(value));
	return value;
}

#endif

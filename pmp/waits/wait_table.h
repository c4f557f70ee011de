// SPDX-License-Identifier: Apache-2.0
// The locks and files that threads waited for: counts since the start and of the interval, and the
// stacks of waiters and holders.
#ifndef STALL_WAIT_TABLE_H
#define STALL_WAIT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/file_class.h"
#include "ebpf/wait_kinds.h"
#include "ebpf/waits.h"
#include "lock/lock_layout.h"
#include "snapshot/snapshot.h"

#define STALL_MAX_ENTRIES 24576
#define STALL_MAX_USES 32 // stacks of waiters, and of holders, of one lock or file

struct stall_wait_counts {
	uint64_t count, total_ns, max_ns, over, bytes, not_waited;
	uint64_t bucket[STALL_WAIT_BUCKETS];
};
void stall_wait_counts_add(struct stall_wait_counts *to, const struct stall_wait_counts *more);

// One stack, and how often it waited or held.
struct stall_wait_use {
	uint32_t stack;
	enum stall_label label;
	pid_t tid; // the latest
	char comm[STALL_BPF_COMM];
	uint64_t count, total_ns;	  // in the interval
	uint64_t all_count, all_total_ns; // since the start
	uint64_t going_on; // waits in flight that were counted in an earlier interval
};

struct stall_wait_uses {
	struct stall_wait_use *uses;
	size_t count, capacity;
};

struct stall_wait_entry {
	struct stall_wait_key key;
	enum stall_watch_kind kind;
	enum stall_wait_role role;	// of a futex word
	bool examined;			// a futex word whose role was determined, maybe as unknown
	enum stall_wait_role ring_role; // of one that was not examined, by its ring
	uint32_t asked;			// the batch in which a stack of it was chosen to find out
	char *name;			// NULL: none is known
	uint64_t object;		// address of the lock; 0 for files
	enum stall_file_class class;	// of files
	bool searched;			// a file, among those that its process has open
	// A row or a metadata lock is not a futex word: each thread waits on one of its own. Its
	// lock has an entry by name, which counts the waits over the threshold: their time is also
	// in the entries of the words, but only once in the sums.
	bool by_name;
	struct stall_wait_key
		named;	    // of a word: the last lock that was waited for; tgid 0: unknown
	uint32_t named_seq; // seq of that wait
	// How to read the owner from the lock's words again.
	bool has_lock;
	struct stall_lock_wait lock_wait;
	enum stall_wait_name lock_name;

	struct stall_wait_counts base;	 // of stats that were retired
	struct stall_wait_counts sum;	 // between begin and finish
	struct stall_wait_counts total;	 // since the start
	struct stall_wait_counts before; // the same at the beginning of the interval
	uint64_t interval_max_ns;
	uint64_t quiet_since_ns; // the stat has not changed since
	bool has_stat;
	uint32_t round; // of begin and finish, in which a stat of it was seen last
	struct stall_wait_uses waiters, holders;
	// At the end of the interval:
	uint32_t in_flight;
	uint32_t in_flight_over;
	uint32_t operation; // of the last of them, as that of a record
	uint64_t value;
	uint64_t longest_ns;
	pid_t owner_tid;
};

// The key of a row or metadata lock by its name. The kernel's keys of futex words have id2 0.
struct stall_wait_key stall_wait_key_by_name(uint32_t tgid, enum stall_watch_kind kind,
					     const char *name);

// Whether a key is of a file rather than of a lock.
static inline bool stall_wait_key_is_file(const struct stall_wait_key *key)
{
	return key->kind != STALL_WAIT_FUTEX;
}

struct stall_wait_table;

struct stall_error *stall_wait_table_create(struct stall_wait_table **ret);
void stall_wait_table_destroy(struct stall_wait_table *table); // NULL is fine

// NULL: there is none.
struct stall_wait_entry *stall_wait_table_find(struct stall_wait_table *table,
					       const struct stall_wait_key *key);
// Finds or makes it. Where there is no room, the smallest entries without a stat are removed; their
// counts stay in the totals. Pointers to entries are valid until then.
struct stall_error *stall_wait_table_get(struct stall_wait_table *table,
					 const struct stall_wait_key *key,
					 struct stall_wait_entry **ret);

// The values of all stats are taken in between begin and finish. A key can have several for a
// moment, while one is retired. `max_ns`: the longest wait since it was last asked for.
void stall_wait_table_begin(struct stall_wait_table *table);
struct stall_error *stall_wait_table_add(struct stall_wait_table *table,
					 const struct stall_wait_stat *stat, uint64_t max_ns);
void stall_wait_table_finish(struct stall_wait_table *table, uint64_t now_ns);

// Counts one wait of an entry by name.
void stall_wait_entry_count(struct stall_wait_entry *entry, uint64_t length_ns);
// The stat is free again; these were its last values.
struct stall_error *stall_wait_table_retire(struct stall_wait_table *table,
					    const struct stall_wait_stat *stat);
// Counts one wait, or one waking. False: there is no room for another stack.
bool stall_wait_uses_add(struct stall_wait_uses *uses, const struct stall_wait_use *use);

// The counts of the interval, or (`final`) since the start.
struct stall_wait_counts stall_wait_entry_counts(const struct stall_wait_entry *entry, bool final);

// Sums over all entries, including removed ones.
void stall_wait_table_sum(const struct stall_wait_table *table, bool final,
			  struct stall_wait_counts ret[STALL_WATCH_KINDS][STALL_FILE_CLASSES]);

// Entries that are of one lock or file: a rwlock and a condition have several words to wait on.
struct stall_wait_group {
	struct stall_wait_entry *const *entries;
	size_t count;
	struct stall_wait_counts counts;
	uint32_t in_flight;
	uint64_t longest_ns;
};

// Those of these kinds with something to report, by total time, at most `max`.
struct stall_wait_top {
	struct stall_wait_group *groups;
	size_t count;
	struct stall_wait_entry **entries;
};
struct stall_error *stall_wait_top_init(struct stall_wait_top *top, struct stall_wait_table *table,
					uint32_t kinds, bool final, size_t max);
void stall_wait_top_deinit(struct stall_wait_top *top);

// The next interval begins.
void stall_wait_table_next(struct stall_wait_table *table);

// For all: index from 0 on, NULL behind the last.
struct stall_wait_entry *stall_wait_table_at(const struct stall_wait_table *table, size_t index);

static inline void stall_wait_table_destroyp(struct stall_wait_table **table)
{
	stall_wait_table_destroy(*table);
}

// The latest threads that woke waiters: the other end of waits that are over.
#define STALL_WAKERS 4096 // a power of two

struct stall_waker {
	uint64_t tag; // of the key; 0: none
	uint64_t when_ns;
	pid_t tid;
	uint32_t stack;
	enum stall_label label;
	char comm[STALL_BPF_COMM];
};

struct stall_wakers {
	struct stall_waker wakers[STALL_WAKERS];
	uint64_t count; // since the start: the latest is at count - 1
};

void stall_wakers_add(struct stall_wakers *wakers, const struct stall_wait_record *record,
		      uint32_t stack, enum stall_label label);
// The last waker of the key's waiters during this wait; NULL: none is known.
const struct stall_waker *stall_wakers_find(const struct stall_wakers *wakers,
					    const struct stall_wait_record *end);

#endif

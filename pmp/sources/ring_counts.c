// SPDX-License-Identifier: Apache-2.0
#include "sources/ring_counts.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define GRACE_NS UINT64_C(100000000) // of threads that have found a stat before it was retired
#define ASK_NS UINT64_C(1000000000)
#define HOLE_NS UINT64_C(10000000) // how long a hole counts as one
// A stat that this reader is clearing.
#define TAG_CLEARED (STALL_TAG_RETIRED - 1)

// What is known of a stat that is in use.
struct seen {
	uint64_t tag; // of its key
	struct stall_wait_stat base, last;
	uint64_t taken[STALL_WAIT_BUCKETS]; // at the last query of the longest wait
	uint64_t max_ns;		    // of a ring that cannot be written: the longest so far
	uint64_t asked_ns;
	enum stall_wait_role role;
};

struct stall_ring_counts {
	struct stall_ring *ring;
	pid_t pid;
	struct stall_ring_ghosts *ghosts;
	size_t stat_count;  // without those of the kinds
	struct seen **seen; // by stat, NULL: not used, as far as we know
	// The pages of the stats: those that were written to, and those that were not a moment ago.
	bool *pages;
	uint64_t hole_start, hole_end, hole_ns;
};

/* Counts. */

static void add_counts(struct stall_wait_stat *to, const struct stall_wait_stat *more)
{
	to->total_ns += more->total_ns;
	to->bytes += more->bytes;
	to->over += more->over;
	to->not_waited += more->not_waited;
	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		to->bucket[i] += more->bucket[i];
}

static void subtract_counts(struct stall_wait_stat *from, const struct stall_wait_stat *less)
{
	from->total_ns -= less->total_ns;
	from->bytes -= less->bytes;
	from->over -= less->over;
	from->not_waited -= less->not_waited;
	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		from->bucket[i] -= less->bucket[i];
}

static bool has_counts(const struct stall_wait_stat *stat)
{
	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		if (stat->bucket[i])
			return true;
	return stat->not_waited;
}

// Counts only grow: less than before is another stat at the same place.
static bool went_back(const struct stall_wait_stat *now, const struct stall_wait_stat *before)
{
	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		if (now->bucket[i] < before->bucket[i])
			return true;
	return false;
}

/* Ghosts. */

void stall_ring_ghosts_deinit(struct stall_ring_ghosts *ghosts)
{
	free(ghosts->stats);
	stall_hash_index_deinit(&ghosts->by_key);
}

static uint64_t hash_of(const struct stall_wait_key *key)
{
	return stall_hash(key, sizeof(*key));
}

struct stall_wait_stat stall_ring_ghosts_take(struct stall_ring_ghosts *ghosts, size_t ghost)
{
	const struct stall_wait_stat stat = ghosts->stats[ghost];
	size_t last = --ghosts->count;

	stall_hash_index_remove(&ghosts->by_key, hash_of(&stat.key), ghost);
	if (ghost == last)
		return stat;
	ghosts->stats[ghost] = ghosts->stats[last];
	stall_hash_index_move(&ghosts->by_key, hash_of(&ghosts->stats[ghost].key), last, ghost);
	return stat;
}

static struct stall_wait_stat *find_ghost(struct stall_ring_ghosts *ghosts,
					  const struct stall_wait_key *key)
{
	uint64_t hash = hash_of(key);
	size_t at = 0;
	uint32_t found;

	while ((found = stall_hash_index_next(&ghosts->by_key, hash, &at)) != STALL_HASH_END)
		if (!memcmp(&ghosts->stats[found].key, key, sizeof(*key)))
			return &ghosts->stats[found];
	if (ghosts->count >= STALL_MAX_RING_GHOSTS && key->tgid)
		return find_ghost(ghosts, &(struct stall_wait_key){.kind = key->kind});
	if (!stall_array_reserve(&ghosts->stats, ghosts->count, 1, &ghosts->capacity) ||
	    !stall_hash_index_add(&ghosts->by_key, hash, ghosts->count))
		return NULL;
	struct stall_wait_stat *ghost = &ghosts->stats[ghosts->count++];
	*ghost = (struct stall_wait_stat){.key = *key, .used = 1};
	return ghost;
}

/* Stats of the ring. */

static volatile struct stall_wait_stat *stat_at(const struct stall_ring_counts *counts,
						size_t index)
{
	size_t count;

	return &stall_ring_stats(counts->ring, &count)[index];
}

size_t stall_ring_counts_size(const struct stall_ring_counts *counts)
{
	return counts->stat_count + stall_ring_kinds(counts->ring);
}

// Of one page, by its offset in the file. `now_ns` 0: check again, whatever was known a moment ago.
static bool page_is_written(struct stall_ring_counts *counts, uint64_t page, uint64_t now_ns)
{
	bool *known = &counts->pages[(page - stall_ring_header(counts->ring)->stats_offset) /
				     STALL_RING_PAGE];

	if (*known)
		return true;
	if (now_ns && now_ns - counts->hole_ns < HOLE_NS && page >= counts->hole_start &&
	    page < counts->hole_end)
		return false;
	uint64_t next = stall_ring_next_data(counts->ring, page);
	*known = next < page + STALL_RING_PAGE;
	if (!*known) {
		counts->hole_start = page;
		counts->hole_end = next;
		counts->hole_ns = stall_clock_ns(CLOCK_MONOTONIC);
	}
	return *known;
}

static bool is_written(struct stall_ring_counts *counts, size_t index, uint64_t now_ns)
{
	const uint64_t size = sizeof(struct stall_wait_stat);
	uint64_t start = stall_ring_header(counts->ring)->stats_offset + index * size;
	uint64_t first = start / STALL_RING_PAGE, last = (start + size - 1) / STALL_RING_PAGE;

	return page_is_written(counts, first * STALL_RING_PAGE, now_ns) &&
	       (last == first || page_is_written(counts, last * STALL_RING_PAGE, now_ns));
}

// The key as the server has it.
static struct stall_wait_key own_key(const struct stall_ring_counts *counts,
				     const struct stall_wait_key *key)
{
	struct stall_wait_key own = *key;

	own.tgid = stall_ring_header(counts->ring)->pid;
	return own;
}

static uint64_t tag_of(const struct stall_ring_counts *counts, const struct stall_wait_key *key)
{
	const struct stall_wait_key own = own_key(counts, key);

	return stall_wait_tag(&own);
}

// A copy, with the key in the reader's terms. False: it is free.
static bool copy_stat(struct stall_ring_counts *counts, size_t index, struct stall_wait_stat *ret)
{
	const volatile uint64_t *from = (const volatile uint64_t *)stat_at(counts, index);
	uint64_t words[sizeof(*ret) / sizeof(uint64_t)];
	bool of_kind = index >= counts->stat_count;

	if (!is_written(counts, index, stall_clock_ns(CLOCK_MONOTONIC)) ||
	    (!of_kind && !stat_at(counts, index)->used))
		return false;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		words[i] = from[i];
	memcpy(ret, words, sizeof(*ret));
	ret->key.tgid = counts->pid;
	if (of_kind)
		ret->key = (struct stall_wait_key){.kind = index - counts->stat_count};
	if (ret->role >= STALL_ROLES)
		ret->role = STALL_ROLE_UNKNOWN;
	return (of_kind ? has_counts(ret) : ret->used) && ret->key.kind < STALL_WAIT_KINDS;
}

static struct seen *make_seen(struct stall_ring_counts *counts, size_t index,
			      const struct stall_wait_stat *now)
{
	struct seen *seen = calloc(1, sizeof(*seen));

	if (!seen)
		return NULL;
	seen->tag = tag_of(counts, &now->key);
	counts->seen[index] = seen;
	return seen;
}

// The stat was freed; keeps its counts, if any.
static struct stall_wait_stat *forget(struct stall_ring_counts *counts, size_t index)
{
	struct seen *seen = no_cleanup_ptr(counts->seen[index]);

	subtract_counts(&seen->last, &seen->base);
	struct stall_wait_stat *ghost =
		has_counts(&seen->last) ? find_ghost(counts->ghosts, &seen->last.key) : NULL;
	if (ghost)
		add_counts(ghost, &seen->last);
	free(seen);
	return ghost;
}

// The present stat; NULL: it is free, or there is no memory.
static struct seen *refresh(struct stall_ring_counts *counts, size_t index)
{
	struct stall_wait_stat now;
	bool used = copy_stat(counts, index, &now);
	struct seen *seen = counts->seen[index];

	if (seen &&
	    (!used || seen->tag != tag_of(counts, &now.key) || went_back(&now, &seen->last))) {
		forget(counts, index);
		seen = NULL;
	}
	if (used && !seen)
		seen = make_seen(counts, index, &now);
	if (seen)
		seen->last = now;
	return seen;
}

struct stall_error *stall_ring_counts_create(struct stall_ring *ring, pid_t pid,
					     struct stall_ring_ghosts *ghosts,
					     struct stall_ring_counts **ret)
{
	struct stall_ring_counts *counts = calloc(1, sizeof(*counts));

	if (!counts)
		return &stall_enomem;
	counts->ring = ring;
	counts->pid = pid;
	counts->ghosts = ghosts;
	stall_ring_stats(ring, &counts->stat_count);
	counts->seen = calloc(stall_ring_counts_size(counts), sizeof(*counts->seen));
	counts->pages = calloc(stall_ring_counts_size(counts) * sizeof(struct stall_wait_stat) /
					       STALL_RING_PAGE +
				       1,
			       sizeof(*counts->pages));
	if (!counts->seen || !counts->pages) {
		free(counts->seen);
		free(counts->pages);
		free(counts);
		return &stall_enomem;
	}
	for (size_t i = 0; i < stall_ring_counts_size(counts); i++) {
		struct seen *seen = refresh(counts, i);

		if (!seen)
			continue;
		seen->base = seen->last;
		stall_ring_counts_take_max(counts, i);
	}
	*ret = counts;
	return NULL;
}

void stall_ring_counts_destroy(struct stall_ring_counts *counts)
{
	if (!counts)
		return;
	for (size_t i = 0; i < stall_ring_counts_size(counts); i++) {
		if (!refresh(counts, i))
			continue;
		uint64_t max_ns = stall_ring_counts_take_max(counts, i);
		struct stall_wait_stat *ghost = forget(counts, i);
		if (ghost && max_ns > ghost->max_ns)
			ghost->max_ns = max_ns;
	}
	free(counts->seen);
	free(counts->pages);
	free(counts);
}

bool stall_ring_counts_read(struct stall_ring_counts *counts, size_t index,
			    struct stall_wait_stat *ret)
{
	if (!index) // a reader of all stats begins here
		counts->hole_ns = 0;
	const struct seen *seen = refresh(counts, index);
	if (!seen)
		return false;
	*ret = seen->last;
	subtract_counts(ret, &seen->base);
	return true;
}

// The lower end of the highest bucket whose count has grown.
static uint64_t longest_counted(struct seen *seen)
{
	int i = STALL_WAIT_BUCKETS;

	while (i > 0 && seen->last.bucket[i - 1] <= seen->taken[i - 1])
		i--;
	memcpy(seen->taken, seen->last.bucket, sizeof(seen->taken));
	return i ? UINT64_C(1) << (i - 1) : 0;
}

uint64_t stall_ring_counts_take_max(struct stall_ring_counts *counts, size_t index)
{
	struct seen *seen = counts->seen[index];
	uint64_t max_ns;

	if (!seen)
		return 0;
	if (stall_ring_is_writable(counts->ring)) {
		max_ns = __atomic_exchange_n(&stat_at(counts, index)->max_ns, 0, __ATOMIC_RELAXED);
	} else {
		max_ns = seen->last.max_ns > seen->max_ns ? seen->last.max_ns : 0;
		seen->max_ns = seen->last.max_ns;
	}
	uint64_t counted_ns = longest_counted(seen);
	return max_ns > counted_ns ? max_ns : counted_ns;
}

static bool is_in_use(const struct stall_ring_counts *counts, size_t index)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(counts->ring, &count);

	if (stat_at(counts, index)->marked)
		return true;
	for (size_t i = 0; i < count; i++)
		if ((slots[i].seq & 1) && slots[i].stat == index)
			return true;
	return false;
}

static void clear_stat(volatile struct stall_wait_stat *stat)
{
	volatile uint64_t *words = (volatile uint64_t *)stat;

	for (size_t i = offsetof(struct stall_wait_stat, key) / sizeof(*words);
	     i < sizeof(*stat) / sizeof(*words); i++)
		words[i] = 0;
}

bool stall_ring_counts_retire(struct stall_ring_counts *counts, size_t index,
			      struct stall_wait_stat *ret)
{
	volatile struct stall_wait_stat *stat = stat_at(counts, index);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	__u64 tag = stat->tag;

	if (!stall_ring_is_writable(counts->ring) || index >= counts->stat_count || !stat->used ||
	    tag == TAG_CLEARED || is_in_use(counts, index))
		return false;
	if (tag != STALL_TAG_RETIRED) {
		stat->retired_ns = now_ns;
		__atomic_store_n(&stat->tag, STALL_TAG_RETIRED, __ATOMIC_SEQ_CST);
		return false;
	}
	if (now_ns - stat->retired_ns < GRACE_NS || !stall_ring_counts_read(counts, index, ret) ||
	    !__atomic_compare_exchange_n(&stat->tag, &tag, TAG_CLEARED, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_RELAXED))
		return false;
	clear_stat(stat);
	__atomic_store_n(&stat->tag, 0, __ATOMIC_SEQ_CST);
	free(no_cleanup_ptr(counts->seen[index]));
	return true;
}

/* Roles and names. */

// Its index, SIZE_MAX: there is none.
static size_t find_stat(struct stall_ring_counts *counts, uint64_t tag)
{
	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		size_t index = (tag + i) & (counts->stat_count - 1);

		if (is_written(counts, index, 0) && stat_at(counts, index)->tag == tag)
			return index;
	}
	return SIZE_MAX;
}

static bool is_by_call(enum stall_wait_role role)
{
	return role == STALL_ROLE_MUTEX || role == STALL_ROLE_RWLOCK;
}

void stall_ring_counts_set_role(struct stall_ring_counts *counts, const struct stall_wait_key *key,
				enum stall_wait_role role)
{
	size_t index = find_stat(counts, tag_of(counts, key));
	struct seen *seen = index == SIZE_MAX ? NULL : refresh(counts, index);

	if (!seen)
		return;
	seen->role = role;
	// These are the defaults of the call, which would be wrong for a condition.
	if (!is_by_call(role) && stall_ring_is_writable(counts->ring))
		stat_at(counts, index)->role = role;
}

static struct seen *seen_of_slot(struct stall_ring_counts *counts,
				 const struct stall_wait_slot *slot)
{
	if (slot->stat >= counts->stat_count)
		return NULL;
	struct seen *seen = counts->seen[slot->stat];
	if (!seen) {
		counts->hole_ns = 0; // a thread waits there: it was written to
		seen = refresh(counts, slot->stat);
	}
	return seen && seen->tag == tag_of(counts, &slot->key) ? seen : NULL;
}

enum stall_wait_role stall_ring_counts_role(struct stall_ring_counts *counts,
					    const struct stall_wait_slot *slot)
{
	const struct seen *seen = seen_of_slot(counts, slot);

	if (!seen || seen->role != STALL_ROLE_UNKNOWN)
		return seen ? seen->role : STALL_ROLE_UNKNOWN;
	return is_by_call(seen->last.role) ? STALL_ROLE_UNKNOWN : seen->last.role;
}

bool stall_ring_counts_ask(struct stall_ring_counts *counts, const struct stall_wait_slot *slot,
			   uint64_t now_ns)
{
	struct seen *seen = seen_of_slot(counts, slot);

	if (!seen || (seen->asked_ns && now_ns - seen->asked_ns < ASK_NS))
		return false;
	seen->asked_ns = now_ns;
	return true;
}

// A path that was too long has lost its beginning.
static void copy_path(const struct stall_ring_name *name, char ret[STALL_PATH])
{
	const char *path = name->path, *slash = strchr(path, '/');
	bool is_cut = strlen(path) == sizeof(name->path) - 1 && path[0] != '/' && slash;

	_Static_assert(sizeof(name->path) + 4 < STALL_PATH, "\".../\" and it fit");
	memset(ret, 0, STALL_PATH);
	if (is_cut)
		strcpy(ret, "...");
	strcat(ret, is_cut ? slash : path);
}

bool stall_ring_counts_file(struct stall_ring_counts *counts, const struct stall_wait_key *key,
			    struct stall_wait_file *ret)
{
	uint64_t tag = tag_of(counts, key);
	size_t index = find_stat(counts, tag);
	struct stall_ring_name name;

	if (index == SIZE_MAX || !stall_ring_read_name(counts->ring, index, tag, &name) ||
	    !name.path[0])
		return false;
	*ret = (struct stall_wait_file){
		.magic = STALL_BPF_MAGIC,
		.type = STALL_RECORD_FILE,
		.tgid = counts->pid,
		.key = *key,
		.fd = -1,
		.mode = name.mode,
	};
	copy_path(&name, ret->path);
	return true;
}

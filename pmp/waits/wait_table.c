// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/hash_index.h"

#define EVICT (STALL_MAX_ENTRIES / 8)

struct stall_wait_table {
	struct stall_wait_entry **entries;
	size_t count;
	uint32_t round;
	struct stall_hash_index by_key;
	bool full; // of entries with a stat, as far as this round knows
	// Of removed entries.
	struct stall_wait_counts gone[STALL_WATCH_KINDS][STALL_FILE_CLASSES];
	struct stall_wait_counts gone_before[STALL_WATCH_KINDS][STALL_FILE_CLASSES];
};

void stall_wait_counts_add(struct stall_wait_counts *to, const struct stall_wait_counts *more)
{
	to->count += more->count;
	to->total_ns += more->total_ns;
	if (more->max_ns > to->max_ns)
		to->max_ns = more->max_ns;
	to->over += more->over;
	to->bytes += more->bytes;
	to->not_waited += more->not_waited;
	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		to->bucket[i] += more->bucket[i];
}

// The kernel's side may be writing while its values are read: one value can be ahead of another,
// but none decreases.
static uint64_t difference(uint64_t now, uint64_t before)
{
	return now > before ? now - before : 0;
}

static struct stall_wait_counts counts_between(const struct stall_wait_counts *now,
					       const struct stall_wait_counts *before)
{
	struct stall_wait_counts counts = {
		.count = difference(now->count, before->count),
		.total_ns = difference(now->total_ns, before->total_ns),
		.over = difference(now->over, before->over),
		.bytes = difference(now->bytes, before->bytes),
		.not_waited = difference(now->not_waited, before->not_waited),
	};

	for (int i = 0; i < STALL_WAIT_BUCKETS; i++)
		counts.bucket[i] = difference(now->bucket[i], before->bucket[i]);
	return counts;
}

static void entry_destroy(struct stall_wait_entry *entry)
{
	free(entry->name);
	free(entry->waiters.uses);
	free(entry->holders.uses);
	free(entry);
}

struct stall_error *stall_wait_table_create(struct stall_wait_table **ret)
{
	_cleanup_(stall_wait_table_destroyp) struct stall_wait_table *table =
		calloc(1, sizeof(*table));

	if (!table)
		return &stall_enomem;
	table->entries = calloc(STALL_MAX_ENTRIES, sizeof(*table->entries));
	if (!table->entries)
		return &stall_enomem;
	*ret = no_cleanup_ptr(table);
	return NULL;
}

void stall_wait_table_destroy(struct stall_wait_table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i < table->count; i++)
		entry_destroy(table->entries[i]);
	stall_hash_index_deinit(&table->by_key);
	free(table->entries);
	free(table);
}

static bool same_key(const struct stall_wait_key *a, const struct stall_wait_key *b)
{
	return a->tgid == b->tgid && a->kind == b->kind && a->id == b->id && a->id2 == b->id2;
}

static uint64_t hash_of(const struct stall_wait_key *key)
{
	return stall_hash(key, sizeof(*key));
}

struct stall_wait_entry *stall_wait_table_find(struct stall_wait_table *table,
					       const struct stall_wait_key *key)
{
	uint64_t hash = hash_of(key);
	size_t at = 0;
	uint32_t found;

	while ((found = stall_hash_index_next(&table->by_key, hash, &at)) != STALL_HASH_END)
		if (same_key(&table->entries[found]->key, key))
			return table->entries[found];
	return NULL;
}

// Those without a stat come last, the least of them at the very end.
static int compare_for_eviction(const void *a, const void *b)
{
	const struct stall_wait_entry *x = *(struct stall_wait_entry *const *)a;
	const struct stall_wait_entry *y = *(struct stall_wait_entry *const *)b;

	if (x->has_stat != y->has_stat)
		return y->has_stat - x->has_stat;
	return (y->total.total_ns > x->total.total_ns) - (y->total.total_ns < x->total.total_ns);
}

static void evict(struct stall_wait_table *table)
{
	qsort(table->entries, table->count, sizeof(*table->entries), compare_for_eviction);
	for (size_t i = 0; i < EVICT && !table->entries[table->count - 1]->has_stat; i++) {
		struct stall_wait_entry *entry = table->entries[--table->count];
		struct stall_wait_counts *gone = &table->gone[entry->kind][entry->class];

		if (!entry->by_name) {
			stall_wait_counts_add(gone, &entry->total);
			stall_wait_counts_add(&table->gone_before[entry->kind][entry->class],
					      &entry->before);
		}
		entry_destroy(entry);
	}
	stall_hash_index_clear(&table->by_key);
	for (size_t i = 0; i < table->count; i++)
		stall_hash_index_add(&table->by_key, hash_of(&table->entries[i]->key), i);
	table->full = table->count == STALL_MAX_ENTRIES;
}

struct stall_error *stall_wait_table_get(struct stall_wait_table *table,
					 const struct stall_wait_key *key,
					 struct stall_wait_entry **ret)
{
	struct stall_wait_entry *entry = stall_wait_table_find(table, key);

	if (entry) {
		*ret = entry;
		return NULL;
	}
	if (table->count == STALL_MAX_ENTRIES && !table->full)
		evict(table);
	if (table->count == STALL_MAX_ENTRIES)
		return stall_error_create(STALL_ERROR_LIMIT, "more than %d locks and files",
					  STALL_MAX_ENTRIES);
	entry = calloc(1, sizeof(*entry));
	if (!entry || !stall_hash_index_add(&table->by_key, hash_of(key), table->count)) {
		free(entry);
		return &stall_enomem;
	}
	entry->key = *key;
	entry->kind = stall_watch_kind_of(key->kind, STALL_ROLE_UNKNOWN);
	entry->object = stall_wait_key_is_file(key) ? 0 : key->id;
	entry->class = STALL_FILE_OTHER;
	table->entries[table->count++] = entry;
	*ret = entry;
	return NULL;
}

static struct stall_wait_counts counts_of(const struct stall_wait_stat *stat, uint64_t max_ns)
{
	struct stall_wait_counts counts = {
		.total_ns = stat->total_ns,
		.max_ns = max_ns,
		.over = stat->over,
		.bytes = stat->bytes,
		.not_waited = stat->not_waited,
	};

	for (int i = 0; i < STALL_WAIT_BUCKETS; i++) {
		counts.bucket[i] = stat->bucket[i];
		counts.count += stat->bucket[i];
	}
	return counts;
}

void stall_wait_table_begin(struct stall_wait_table *table)
{
	table->round++;
	for (size_t i = 0; i < table->count; i++)
		table->entries[i]->sum = table->entries[i]->base;
}

struct stall_error *stall_wait_table_add(struct stall_wait_table *table,
					 const struct stall_wait_stat *stat, uint64_t max_ns)
{
	const struct stall_wait_counts counts = counts_of(stat, max_ns);
	struct stall_wait_entry *entry;
	struct stall_error *err = stall_wait_table_get(table, &stat->key, &entry);

	if (err)
		return err;
	stall_wait_counts_add(&entry->sum, &counts);
	entry->has_stat = true;
	entry->round = table->round;
	if (max_ns > entry->interval_max_ns)
		entry->interval_max_ns = max_ns;
	return NULL;
}

void stall_wait_table_finish(struct stall_wait_table *table, uint64_t now_ns)
{
	table->full = false;
	for (size_t i = 0; i < table->count; i++) {
		struct stall_wait_entry *entry = table->entries[i];

		if (entry->by_name)
			continue;
		if (entry->sum.max_ns < entry->total.max_ns)
			entry->sum.max_ns = entry->total.max_ns;
		if (entry->sum.count != entry->total.count || !entry->quiet_since_ns)
			entry->quiet_since_ns = now_ns;
		entry->total = entry->sum;
		entry->has_stat = entry->round == table->round;
	}
}

struct stall_error *stall_wait_table_retire(struct stall_wait_table *table,
					    const struct stall_wait_stat *stat)
{
	const struct stall_wait_counts counts = counts_of(stat, stat->max_ns);
	struct stall_wait_entry *entry;
	struct stall_error *err = stall_wait_table_get(table, &stat->key, &entry);

	if (err)
		return err;
	stall_wait_counts_add(&entry->base, &counts);
	if (entry->total.count < entry->base.count)
		entry->total = entry->base;
	return NULL;
}

struct stall_wait_key stall_wait_key_by_name(uint32_t tgid, enum stall_watch_kind kind,
					     const char *name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325); // FNV-1a

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return (struct stall_wait_key){
		.tgid = tgid,
		.kind = STALL_WAIT_FUTEX,
		.id = hash,
		.id2 = 1 + kind,
	};
}

void stall_wait_entry_count(struct stall_wait_entry *entry, uint64_t length_ns)
{
	int bucket = length_ns ? 63 - __builtin_clzll(length_ns) : 0;

	entry->total.count++;
	entry->total.over++;
	entry->total.total_ns += length_ns;
	entry->total.bucket[bucket < STALL_WAIT_BUCKETS ? bucket : STALL_WAIT_BUCKETS - 1]++;
	if (length_ns > entry->total.max_ns)
		entry->total.max_ns = length_ns;
	if (length_ns > entry->interval_max_ns)
		entry->interval_max_ns = length_ns;
}

bool stall_wait_uses_add(struct stall_wait_uses *uses, const struct stall_wait_use *use)
{
	for (size_t i = 0; i < uses->count; i++) {
		struct stall_wait_use *known = &uses->uses[i];
		if (known->stack != use->stack || known->label != use->label)
			continue;
		known->count += use->count;
		known->total_ns += use->total_ns;
		known->all_count += use->count;
		known->all_total_ns += use->total_ns;
		known->tid = use->tid;
		memcpy(known->comm, use->comm, sizeof(known->comm));
		return true;
	}
	if (uses->count == STALL_MAX_USES)
		return false;
	if (!stall_array_reserve(&uses->uses, uses->count, 1, &uses->capacity))
		return false;
	struct stall_wait_use *added = &uses->uses[uses->count++];
	*added = *use;
	added->all_count = use->count;
	added->all_total_ns = use->total_ns;
	return true;
}

struct stall_wait_counts stall_wait_entry_counts(const struct stall_wait_entry *entry, bool final)
{
	if (final)
		return entry->total;
	struct stall_wait_counts counts = counts_between(&entry->total, &entry->before);
	counts.max_ns = entry->interval_max_ns;
	return counts;
}

void stall_wait_table_sum(const struct stall_wait_table *table, bool final,
			  struct stall_wait_counts ret[STALL_WATCH_KINDS][STALL_FILE_CLASSES])
{
	for (int kind = 0; kind < STALL_WATCH_KINDS; kind++)
		for (int class = 0; class < STALL_FILE_CLASSES; class ++)
			ret[kind][class] = final ? table->gone[kind][class]
						 : counts_between(&table->gone[kind][class],
								  &table->gone_before[kind][class]);
	for (size_t i = 0; i < table->count; i++) {
		const struct stall_wait_entry *entry = table->entries[i];
		if (entry->by_name)
			continue;
		const struct stall_wait_counts counts = stall_wait_entry_counts(entry, final);
		stall_wait_counts_add(&ret[entry->kind][entry->class], &counts);
	}
}

void stall_wait_table_next(struct stall_wait_table *table)
{
	memcpy(table->gone_before, table->gone, sizeof(table->gone));
	for (size_t i = 0; i < table->count; i++) {
		struct stall_wait_entry *entry = table->entries[i];
		struct stall_wait_uses *uses[2] = {&entry->waiters, &entry->holders};

		entry->before = entry->total;
		entry->interval_max_ns = 0;
		for (int j = 0; j < 2; j++)
			for (size_t k = 0; k < uses[j]->count; k++) {
				uses[j]->uses[k].count = 0;
				uses[j]->uses[k].total_ns = 0;
			}
	}
}

struct stall_wait_entry *stall_wait_table_at(const struct stall_wait_table *table, size_t index)
{
	return index < table->count ? table->entries[index] : NULL;
}

/* The top of it. */

static int compare_lock(const struct stall_wait_entry *x, const struct stall_wait_entry *y)
{
	if (x->key.tgid != y->key.tgid)
		return x->key.tgid < y->key.tgid ? -1 : 1;
	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	if (x->by_name != y->by_name)
		return x->by_name - y->by_name;
	if (!x->by_name && stall_watch_kind_is_named(x->kind))
		return 0;
	if (x->object || y->object)
		return (x->object > y->object) - (x->object < y->object);
	if (x->key.id != y->key.id)
		return x->key.id < y->key.id ? -1 : 1;
	return (x->key.id2 > y->key.id2) - (x->key.id2 < y->key.id2);
}

static int compare_entries(const void *a, const void *b)
{
	return compare_lock(*(struct stall_wait_entry *const *)a,
			    *(struct stall_wait_entry *const *)b);
}

// Where no wait has ended yet, waits in flight count.
static int compare_groups(const void *a, const void *b)
{
	const struct stall_wait_group *x = a, *y = b;

	if (x->counts.total_ns != y->counts.total_ns)
		return x->counts.total_ns > y->counts.total_ns ? -1 : 1;
	if (x->longest_ns != y->longest_ns)
		return x->longest_ns > y->longest_ns ? -1 : 1;
	return compare_lock(x->entries[0], y->entries[0]);
}

// Entries for everything without a place in the kernel's table are no lock or file.
static bool is_listed(const struct stall_wait_entry *entry, uint32_t kinds, bool final)
{
	if (!(kinds & 1u << entry->kind) || !entry->key.tgid)
		return false;
	// A thread on a word without a role may be waiting for work.
	bool known = stall_wait_key_is_file(&entry->key) || entry->examined;
	return (entry->in_flight && known) || stall_wait_entry_counts(entry, final).count;
}

// The kinds without those whose locks are known by name: there their words add nothing.
static uint32_t kinds_by_word(const struct stall_wait_table *table, uint32_t kinds, bool final)
{
	const struct stall_wait_entry *entry;
	uint32_t by_word = kinds;

	for (size_t i = 0; (entry = stall_wait_table_at(table, i)); i++)
		if (entry->by_name && is_listed(entry, kinds, final))
			by_word &= ~(1u << entry->kind);
	return by_word;
}

static void add_to_group(struct stall_wait_group *group, const struct stall_wait_entry *entry,
			 bool final)
{
	const struct stall_wait_counts counts = stall_wait_entry_counts(entry, final);

	stall_wait_counts_add(&group->counts, &counts);
	group->count++;
	group->in_flight += entry->in_flight;
	if (entry->longest_ns > group->longest_ns)
		group->longest_ns = entry->longest_ns;
}

static void make_groups(struct stall_wait_top *top, size_t entries, bool final)
{
	for (size_t i = 0; i < entries; i++) {
		if (!i || compare_lock(top->entries[i - 1], top->entries[i]) != 0)
			top->groups[top->count++].entries = &top->entries[i];
		add_to_group(&top->groups[top->count - 1], top->entries[i], final);
	}
	qsort(top->groups, top->count, sizeof(*top->groups), compare_groups);
}

struct stall_error *stall_wait_top_init(struct stall_wait_top *top, struct stall_wait_table *table,
					uint32_t kinds, bool final, size_t max)
{
	uint32_t by_word = kinds_by_word(table, kinds, final);
	struct stall_wait_entry *entry;
	size_t wanted = 0;

	*top = (struct stall_wait_top){};
	for (size_t i = 0; (entry = stall_wait_table_at(table, i)); i++)
		wanted += is_listed(entry, entry->by_name ? kinds : by_word, final);
	top->entries = calloc(wanted + 1, sizeof(*top->entries));
	top->groups = calloc(wanted + 1, sizeof(*top->groups));
	if (!top->entries || !top->groups) {
		stall_wait_top_deinit(top);
		return &stall_enomem;
	}
	wanted = 0;
	for (size_t i = 0; (entry = stall_wait_table_at(table, i)); i++)
		if (is_listed(entry, entry->by_name ? kinds : by_word, final))
			top->entries[wanted++] = entry;
	qsort(top->entries, wanted, sizeof(*top->entries), compare_entries);
	make_groups(top, wanted, final);
	if (top->count > max)
		top->count = max;
	return NULL;
}

void stall_wait_top_deinit(struct stall_wait_top *top)
{
	free(top->entries);
	free(top->groups);
	*top = (struct stall_wait_top){};
}

void stall_wakers_add(struct stall_wakers *wakers, const struct stall_wait_record *record,
		      uint32_t stack, enum stall_label label)
{
	struct stall_waker *waker = &wakers->wakers[wakers->count++ % STALL_WAKERS];

	*waker = (struct stall_waker){
		.tag = stall_wait_tag(&record->key),
		.when_ns = record->now_ns,
		.tid = record->tid,
		.stack = stack,
		.label = label,
	};
	memcpy(waker->comm, record->comm, sizeof(waker->comm));
}

// Records of several CPUs come in the order in which they were begun, so that one from after the
// wait's end may stand before it.
const struct stall_waker *stall_wakers_find(const struct stall_wakers *wakers,
					    const struct stall_wait_record *end)
{
	uint64_t tag = stall_wait_tag(&end->key);
	uint64_t oldest = wakers->count > STALL_WAKERS ? wakers->count - STALL_WAKERS : 0;
	const struct stall_waker *found = NULL;

	for (uint64_t i = wakers->count; i > oldest; i--) {
		const struct stall_waker *waker = &wakers->wakers[(i - 1) % STALL_WAKERS];
		if (waker->tag != tag || waker->when_ns > end->now_ns ||
		    waker->when_ns < end->start_ns)
			continue;
		if (!found || waker->when_ns > found->when_ns)
			found = waker;
	}
	return found;
}

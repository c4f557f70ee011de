// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "base/cleanup.h"
#include "waits/wait_table.h"

static int compare_lock(const struct stall_wait_entry *x, const struct stall_wait_entry *y)
{
	if (x->key.tgid != y->key.tgid)
		return x->key.tgid < y->key.tgid ? -1 : 1;
	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	if (x->by_name != y->by_name)
		return x->by_name - y->by_name;
	if (!x->by_name && stall_wait_kind_has_names(x->kind))
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

// Where nothing has ended yet, what goes on counts.
static int compare_groups(const void *a, const void *b)
{
	const struct stall_wait_group *x = a, *y = b;

	if (x->counts.total_ns != y->counts.total_ns)
		return x->counts.total_ns > y->counts.total_ns ? -1 : 1;
	if (x->longest_ns != y->longest_ns)
		return x->longest_ns > y->longest_ns ? -1 : 1;
	return compare_lock(x->entries[0], y->entries[0]);
}

// Entries that stand for all that found no place in the kernel's table are no lock or file.
static bool is_wanted(const struct stall_wait_entry *entry, uint32_t kinds, bool final)
{
	if (!(kinds & 1u << entry->kind) || !entry->key.tgid)
		return false;
	// Who waits on a word that nobody has looked at may be waiting for work.
	bool known = stall_wait_key_is_file(&entry->key) || entry->looked_at;
	return (entry->in_flight && known) || stall_wait_entry_counts(entry, final).count;
}

// The kinds without those whose locks are known by name: there their words say no more.
static uint32_t kinds_by_word(const struct stall_wait_table *table, uint32_t kinds, bool final)
{
	const struct stall_wait_entry *entry;
	uint32_t by_word = kinds;

	for (size_t i = 0; (entry = stall_wait_table_at(table, i)); i++)
		if (entry->by_name && is_wanted(entry, kinds, final))
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
		wanted += is_wanted(entry, entry->by_name ? kinds : by_word, final);
	top->entries = calloc(wanted + 1, sizeof(*top->entries));
	top->groups = calloc(wanted + 1, sizeof(*top->groups));
	if (!top->entries || !top->groups) {
		stall_wait_top_deinit(top);
		return &stall_enomem;
	}
	wanted = 0;
	for (size_t i = 0; (entry = stall_wait_table_at(table, i)); i++)
		if (is_wanted(entry, entry->by_name ? kinds : by_word, final))
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

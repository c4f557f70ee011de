// SPDX-License-Identifier: Apache-2.0
#include "base/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/options_text.h"

#define MAX_KEY 96

struct stall_layout_entry {
	char key[MAX_KEY];
	int64_t value;
};

// The entry of this key, or where it would be.
static size_t find(const struct stall_layout *layout, const char *key, bool *ret_found)
{
	size_t low = 0, high = layout->count;

	*ret_found = false;
	while (low < high && !*ret_found) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(layout->entries[middle].key, key);
		*ret_found = !order;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return *ret_found ? high : low;
}

static struct stall_error *put(struct stall_layout *layout, const struct stall_layout_entry *entry)
{
	bool found;
	size_t at = find(layout, entry->key, &found);

	if (!found && layout->count == STALL_LAYOUT_MAX)
		return stall_usage("--layout: more than %d entries", STALL_LAYOUT_MAX);
	if (!found) {
		memmove(&layout->entries[at + 1], &layout->entries[at],
			(layout->count - at) * sizeof(*layout->entries));
		layout->count++;
	}
	layout->entries[at] = *entry;
	return NULL;
}

static struct stall_error *parse(const char *word, size_t length, struct stall_layout_entry *ret)
{
	char text[MAX_KEY + 32];
	char *rest;

	if (length >= sizeof(text))
		return stall_usage("--layout: an entry of more than %zu characters", sizeof(text));
	memcpy(text, word, length);
	text[length] = '\0';
	char *equals = strchr(text, '=');
	size_t size = equals ? (size_t)(equals - text) : 0;
	if (!size || size >= MAX_KEY)
		return stall_usage("--layout \"%s\": KEY=NUMBER is wanted", text);
	*equals = '\0';
	*ret = (struct stall_layout_entry){};
	memcpy(ret->key, text, size);
	errno = 0;
	ret->value = strtoll(equals + 1, &rest, 0);
	if (errno || rest == equals + 1 || *rest)
		return stall_usage("--layout %s: \"%s\" is no number", ret->key, equals + 1);
	return NULL;
}

struct stall_error *stall_layout_add(struct stall_layout *layout, const char *text)
{
	struct stall_layout changed = {calloc(STALL_LAYOUT_MAX, sizeof(*changed.entries)),
				       layout->count};
	struct stall_layout_entry entry;
	struct stall_error *err = NULL;

	if (!changed.entries)
		return &stall_enomem;
	if (layout->count)
		memcpy(changed.entries, layout->entries, layout->count * sizeof(*changed.entries));
	for (text += strspn(text, " "); !err && *text; text += strspn(text, " ")) {
		size_t length = strcspn(text, " ");
		err = parse(text, length, &entry);
		if (!err)
			err = put(&changed, &entry);
		text += length;
	}
	if (err) {
		stall_layout_deinit(&changed);
		return err;
	}
	stall_layout_deinit(layout);
	*layout = changed;
	return NULL;
}

struct stall_error *stall_layout_join(struct stall_layout *layout, const struct stall_layout *other)
{
	struct stall_error *err = NULL;

	if (!layout->entries)
		layout->entries = calloc(STALL_LAYOUT_MAX, sizeof(*layout->entries));
	if (!layout->entries)
		return &stall_enomem;
	for (size_t i = 0; !err && i < other->count; i++)
		err = put(layout, &other->entries[i]);
	return err;
}

bool stall_layout_get(const struct stall_layout *layout, const char *key, int64_t *ret)
{
	bool found;
	size_t at = find(layout, key, &found);

	if (found)
		*ret = layout->entries[at].value;
	return found;
}

void stall_layout_deinit(struct stall_layout *layout)
{
	free(layout->entries);
	*layout = (struct stall_layout){};
}

// SPDX-License-Identifier: Apache-2.0
#include "growth/mappings.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "proc/maps_line.h"
#include "proc/read_child.h"

#define CHUNK (128 * 1024)
#define MAX_LINE 8192 // a path has 4096 bytes at most, each of them escaped at worst

struct reading {
	struct stall_growth_mappings *mappings;
	char line[MAX_LINE];
	size_t size;
	bool too_long; // the rest of this line is left out
};

static const struct {
	const char *key;
	size_t offset, sum;
	bool has_sum;
} fields[] = {
#define FIELD(key, member)                                                                         \
	{                                                                                          \
		key, offsetof(struct stall_growth_mapping, member),                                \
			offsetof(struct stall_growth_mappings, member), true                       \
	}
	FIELD("Rss:", rss),
	FIELD("Anonymous:", anonymous),
	FIELD("Swap:", swap),
	FIELD("AnonHugePages:", huge),
	FIELD("Private_Hugetlb:", hugetlb),
	FIELD("Shared_Hugetlb:", hugetlb),
	{"KernelPageSize:", offsetof(struct stall_growth_mapping, page_size), 0, false},
#undef FIELD
};

static struct stall_error *add(struct stall_growth_mappings *mappings,
			       const struct stall_maps_line *line, const char *text)
{
	const char *space = memchr(text, ' ', 64);

	if (mappings->count == STALL_GROWTH_MAX_MAPPINGS) {
		mappings->cut = true;
		return NULL;
	}
	if (!stall_array_reserve(&mappings->list, mappings->count, 1, &mappings->capacity))
		return &stall_enomem;
	if (space && space[2] == 'w' && space[4] == 'p')
		mappings->mapped += line->end - line->start;
	mappings->list[mappings->count++] = (struct stall_growth_mapping){
		.start = line->start,
		.end = line->end,
		.page_size = 4096,
		.is_file = line->ino != 0,
		.is_shared = space && space[4] == 's',
		.is_main_stack = line->path_size == 7 && !memcmp(line->path, "[stack]", 7),
		.is_heap = line->path_size == 6 && !memcmp(line->path, "[heap]", 6),
	};
	return NULL;
}

static void set_field(struct stall_growth_mappings *mappings, const char *text)
{
	struct stall_growth_mapping *mapping = &mappings->list[mappings->count - 1];

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		size_t size = strlen(fields[i].key);
		if (strncmp(text, fields[i].key, size))
			continue;
		uint64_t bytes = strtoull(text + size, NULL, 10) * 1024;
		if (!fields[i].has_sum) {
			if (bytes)
				*(uint64_t *)((char *)mapping + fields[i].offset) = bytes;
			return;
		}
		*(uint64_t *)((char *)mapping + fields[i].offset) += bytes;
		*(uint64_t *)((char *)mappings + fields[i].sum) += bytes;
		return;
	}
}

static struct stall_error *take_line(struct reading *reading)
{
	struct stall_growth_mappings *mappings = reading->mappings;
	struct stall_maps_line line;

	reading->line[reading->size] = 0;
	// The kernel begins a mapping with its address, in hex; a field with a capital letter.
	if ((reading->line[0] < 'A' || reading->line[0] > 'Z') &&
	    stall_maps_line_parse(reading->line, reading->size, &line))
		return add(mappings, &line, reading->line);
	if (mappings->count && !mappings->cut)
		set_field(mappings, reading->line);
	return NULL;
}

static struct stall_error *take_text(struct reading *reading, const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (text[i] != '\n') {
			if (reading->size < MAX_LINE - 1)
				reading->line[reading->size++] = text[i];
			continue;
		}
		struct stall_error *err = take_line(reading);
		reading->size = 0;
		if (err)
			return err;
	}
	return NULL;
}

struct stall_error *stall_growth_mappings_parse(const char *text, size_t size,
						struct stall_growth_mappings *ret)
{
	struct reading reading = {.mappings = ret};

	return take_text(&reading, text, size);
}

struct stall_error *stall_growth_mappings_read(const struct stall_target *target,
					       struct stall_growth_mappings *ret)
{
	struct reading reading = {.mappings = ret};
	char *chunk = malloc(CHUNK);
	size_t got = 1;

	if (!chunk)
		return &stall_enomem;
	struct stall_error *err = stall_read_child_open(target, "smaps");
	while (!err && got) {
		err = stall_read_child_next(target, chunk, CHUNK, &got);
		if (!err)
			err = take_text(&reading, chunk, got);
	}
	free(chunk);
	if (err || ret->count)
		return err;
	return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has no memory any more",
				  target->pid);
}

void stall_growth_mappings_deinit(struct stall_growth_mappings *mappings)
{
	free(mappings->list);
	*mappings = (struct stall_growth_mappings){};
}

const struct stall_growth_mapping *stall_growth_mappings_find(
	const struct stall_growth_mappings *mappings, uint64_t address)
{
	size_t low = 0, high = mappings->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (mappings->list[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == mappings->count || mappings->list[low].start > address)
		return NULL;
	return &mappings->list[low];
}

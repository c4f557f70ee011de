// SPDX-License-Identifier: Apache-2.0
#include "core/core_memory.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/lengths.h"

static int compare_segments(const void *a, const void *b)
{
	const struct stall_core_segment *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

static void add_segment(struct stall_core_memory *memory, const Elf64_Phdr *segment)
{
	uint64_t end, held = stall_at_most(segment->p_filesz, segment->p_memsz);

	if (segment->p_type != PT_LOAD || segment->p_memsz == 0 ||
	    !stall_add(segment->p_vaddr, segment->p_memsz, &end))
		return;
	uint64_t there = stall_rest(segment->p_offset, memory->elf->size);
	if (held > there) {
		memory->missing += held - there;
		held = there;
	}
	memory->segments[memory->count++] = (struct stall_core_segment){
		.start = segment->p_vaddr,
		.end = end,
		.offset = segment->p_offset,
		.held = held,
		.flags = segment->p_flags,
	};
}

static void drop_overlaps(struct stall_core_memory *memory)
{
	size_t kept = 0;

	for (size_t i = 0; i < memory->count; i++) {
		if (kept && memory->segments[i].start < memory->segments[kept - 1].end)
			continue;
		memory->segments[kept++] = memory->segments[i];
	}
	memory->count = kept;
}

struct stall_error *stall_core_memory_create(struct stall_elf *elf, struct stall_core_memory **ret)
{
	struct stall_core_memory *memory = calloc(1, sizeof(*memory));

	if (!memory) {
		stall_elf_destroy(elf);
		return &stall_enomem;
	}
	memory->elf = elf;
	memory->segments = calloc(elf->segment_count + 1, sizeof(*memory->segments));
	if (!memory->segments) {
		stall_core_memory_destroy(memory);
		return &stall_enomem;
	}
	for (size_t i = 0; i < elf->segment_count; i++)
		add_segment(memory, &elf->segments[i]);
	qsort(memory->segments, memory->count, sizeof(*memory->segments), compare_segments);
	drop_overlaps(memory);
	*ret = memory;
	return NULL;
}

void stall_core_memory_destroy(struct stall_core_memory *memory)
{
	if (!memory)
		return;
	stall_elf_destroy(memory->elf);
	free(memory->segments);
	free(memory);
}

static const struct stall_core_segment *find_segment(const struct stall_core_memory *memory,
						     uint64_t address)
{
	size_t low = 0, high = memory->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (memory->segments[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < memory->count && memory->segments[low].start <= address
		       ? &memory->segments[low]
		       : NULL;
}

size_t stall_core_memory_read(const struct stall_core_memory *memory, uint64_t address, void *buf,
			      size_t size)
{
	size_t done = 0;

	while (done < size) {
		uint64_t at = address + done;
		const struct stall_core_segment *segment = find_segment(memory, at);
		uint64_t inside = segment ? at - segment->start : 0;

		if (at < address || !segment || inside >= segment->held)
			break;
		size_t part = stall_at_most(segment->held - inside, size - done);
		struct stall_error *err = stall_elf_read(memory->elf, segment->offset + inside,
							 (char *)buf + done, part);
		if (err) {
			stall_error_destroy(err);
			break;
		}
		done += part;
	}
	return done;
}

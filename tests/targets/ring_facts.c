// SPDX-License-Identifier: Apache-2.0
// ring_facts RING: prints the data of a ring as JSON, one fact per line, directly from its layout.
#include "target.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include "inproc/ring.h"

static const uint8_t *ring;

static void print_stats(const struct stall_ring_header *header)
{
	const struct stall_wait_stat *stats = (const void *)(ring + header->stats_offset);

	for (uint32_t i = 0; i < header->stat_count + STALL_WAIT_KINDS; i++) {
		const struct stall_wait_stat *stat = &stats[i];
		unsigned long long count = 0;

		for (int bucket = 0; bucket < STALL_WAIT_BUCKETS; bucket++)
			count += stat->bucket[bucket];
		if (count)
			printf("{\"fact\":\"stat\",\"kind\":%u,\"id\":%llu,\"count\":%llu,"
			       "\"total_ns\":%llu,\"over\":%llu,\"bytes\":%llu,\"marked\":%u}\n",
			       stat->key.kind, stat->key.id, count, stat->total_ns, stat->over,
			       stat->bytes, stat->marked);
	}
}

static void print_slots(const struct stall_ring_header *header)
{
	const struct stall_wait_slot *slots = (const void *)(ring + header->slots_offset);

	for (uint32_t i = 0; i < header->slot_count; i++) {
		const struct stall_ring_stack *stack =
			(const void *)(ring + header->stacks_offset +
				       (uint64_t)i * header->stack_stride);

		if (!slots[i].tid)
			continue;
		printf("{\"fact\":\"slot\",\"tid\":%d,\"waits\":%d,\"kind\":%u,\"id\":%llu,"
		       "\"operation\":%u,\"stack\":%u}\n",
		       slots[i].tid, slots[i].seq & 1, slots[i].key.kind, slots[i].key.id,
		       slots[i].operation, stack->seq == slots[i].seq ? stack->size : 0);
	}
}

static void print_records(const struct stall_ring_header *header)
{
	for (uint32_t i = 0; i < header->cell_count; i++) {
		const struct stall_ring_cell *cell =
			(const void *)(ring + header->records_offset +
				       (uint64_t)i * header->cell_stride);
		const struct stall_wait_record *record = &cell->record;

		if (cell->ticket && !(cell->ticket & 1))
			printf("{\"fact\":\"record\",\"type\":%u,\"tid\":%d,\"kind\":%u,"
			       "\"id\":%llu,\"operation\":%u,\"result\":%lld,\"ns\":%llu,"
			       "\"stack\":%u}\n",
			       record->type, record->tid, record->key.kind, record->key.id,
			       record->operation, record->result, record->now_ns - record->start_ns,
			       record->stack_size);
	}
}

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
	struct stat stat;

	if (fd < 0 || fstat(fd, &stat))
		target_die("a ring");
	ring = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (ring == MAP_FAILED)
		target_die("mmap");
	const struct stall_ring_header *header = (const void *)ring;
	if (memcmp(header->magic, STALL_RING_MAGIC, sizeof(header->magic)) ||
	    header->version != STALL_RING_VERSION ||
	    header->file_size != (unsigned long long)stat.st_size)
		target_die("not a ring");
	printf("{\"fact\":\"ring\",\"pid\":%d,\"state\":%u,\"slots_used\":%u,\"waits\":%llu}\n",
	       header->pid, header->state, header->slots_used, header->waits);
	print_stats(header);
	print_slots(header);
	print_records(header);
	return 0;
}

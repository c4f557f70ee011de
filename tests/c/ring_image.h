// SPDX-License-Identifier: Apache-2.0
// A small ring as libstallscope.so lays it out, written by a test, without the library.
#ifndef STALL_RING_IMAGE_H
#define STALL_RING_IMAGE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inproc/ring.h"

#define IMAGE_SLOTS 8
#define IMAGE_STACK 1024
#define IMAGE_STATS 16
#define IMAGE_CELLS 8
#define IMAGE_CELL_STACK 512
#define IMAGE_MAPS 4096

struct ring_image {
	uint8_t *bytes;
	struct stall_ring_header *header; // in them
};

static inline uint64_t image_part(uint64_t *end, uint64_t size)
{
	uint64_t offset = *end;

	*end = (offset + size + STALL_RING_PAGE - 1) / STALL_RING_PAGE * STALL_RING_PAGE;
	return offset;
}

static inline struct ring_image image_create(pid_t pid, uint64_t start_time)
{
	struct stall_ring_header header = {
		.version = STALL_RING_VERSION,
		.header_size = sizeof(header),
		.kinds = STALL_WAIT_KINDS,
		.causes = STALL_LOST_CAUSES,
		.slot_count = IMAGE_SLOTS,
		.stack_stride = sizeof(struct stall_ring_stack) + IMAGE_STACK,
		.stat_count = IMAGE_STATS,
		.cell_count = IMAGE_CELLS,
		.cell_stride = sizeof(struct stall_ring_cell) + IMAGE_CELL_STACK,
		.maps_stride = sizeof(struct stall_ring_maps) + IMAGE_MAPS,
		.pid = pid,
		.uid = geteuid(),
		.start_time = start_time,
		.created_ns = 1000,
		.created_wall_ns = UINT64_C(1700000000000000000),
		.comm = "imagined",
		.exe = "/usr/sbin/imagined",
		.enabled = 1,
		.state = STALL_RING_LIVE,
		.slots_used = IMAGE_SLOTS,
	};
	uint64_t end = STALL_RING_PAGE;

	memcpy(header.magic, STALL_RING_MAGIC, sizeof(header.magic));
	header.slots_offset = image_part(&end, IMAGE_SLOTS * sizeof(struct stall_wait_slot));
	header.stacks_offset = image_part(&end, (uint64_t)IMAGE_SLOTS * header.stack_stride);
	header.stats_offset =
		image_part(&end, (IMAGE_STATS + STALL_WAIT_KINDS) * sizeof(struct stall_wait_stat));
	header.names_offset = image_part(&end, IMAGE_STATS * sizeof(struct stall_ring_name));
	header.records_offset = image_part(&end, (uint64_t)IMAGE_CELLS * header.cell_stride);
	header.maps_offset = image_part(&end, (uint64_t)2 * header.maps_stride);
	header.file_size = end;
	struct ring_image image = {.bytes = calloc(1, end)};
	memcpy(image.bytes, &header, sizeof(header));
	image.header = (struct stall_ring_header *)image.bytes;
	return image;
}

static inline struct stall_wait_slot *image_slot(const struct ring_image *image, size_t slot)
{
	return (struct stall_wait_slot *)(image->bytes + image->header->slots_offset) + slot;
}

static inline struct stall_ring_stack *image_stack(const struct ring_image *image, size_t slot)
{
	return (struct stall_ring_stack *)(image->bytes + image->header->stacks_offset +
					   slot * image->header->stack_stride);
}

static inline struct stall_ring_cell *image_cell(const struct ring_image *image, size_t cell)
{
	return (struct stall_ring_cell *)(image->bytes + image->header->records_offset +
					  cell * image->header->cell_stride);
}

static inline void image_set_maps(const struct ring_image *image, const char *text)
{
	struct stall_ring_maps *maps =
		(struct stall_ring_maps *)(image->bytes + image->header->maps_offset);

	maps->size = (uint32_t)strlen(text);
	maps->read_ns = 2000;
	memcpy(maps->text, text, maps->size);
}

// A wait of `tid` for the object since start_ns, without a stack.
static inline struct stall_wait_slot *image_wait(const struct ring_image *image, size_t slot,
						 pid_t tid, enum stall_ring_call call,
						 uint64_t object, uint64_t start_ns)
{
	struct stall_wait_slot *wait = image_slot(image, slot);

	*wait = (struct stall_wait_slot){
		.seq = 7,
		.key = {.kind = STALL_WAIT_FUTEX, .id = object},
		.start_ns = start_ns,
		.tid = tid,
		.ns_tid = tid,
		.operation = call,
		.comm = "waiter",
	};
	return wait;
}

// Its stack: `size` bytes of a stack that has `whole`, and the words around the object.
static inline struct stall_ring_stack *image_wait_stack(const struct ring_image *image, size_t slot,
							uint32_t size, uint64_t whole,
							uint64_t words_ns)
{
	struct stall_ring_stack *stack = image_stack(image, slot);

	*stack = (struct stall_ring_stack){
		.seq = image_slot(image, slot)->seq,
		.size = size,
		.address = 0x7f0000001000,
		.whole = whole,
		.words_ns = words_ns,
	};
	stack->regs[STALL_BPF_SP] = 0x7f0000001000;
	stack->regs[STALL_BPF_IP] = 0x400123;
	memset(stack->bytes, 0x5a, size < IMAGE_STACK ? size : IMAGE_STACK);
	return stack;
}

static inline void image_set_word(uint8_t words[STALL_RING_WORDS], int offset, uint32_t value)
{
	memcpy(words + 16 + offset, &value, sizeof(value));
}

static inline struct stall_ring_cell *image_record(const struct ring_image *image, uint64_t number,
						   uint32_t type, pid_t tid, uint64_t object,
						   uint64_t now_ns)
{
	struct stall_ring_cell *cell = image_cell(image, number % IMAGE_CELLS);

	*cell = (struct stall_ring_cell){
		.ticket = 2 * number + 2,
		.whole = 64,
		.record = {.magic = STALL_BPF_MAGIC,
			   .type = type,
			   .tid = tid,
			   .ns_tid = tid,
			   .key = {.kind = STALL_WAIT_FUTEX, .id = object},
			   .now_ns = now_ns,
			   .stack_size = 64,
			   .stack_address = 0x7f0000002000,
			   .comm = "holder"},
	};
	memset(cell->stack, (int)number, 64);
	if (image->header->head <= number)
		image->header->head = number + 1;
	return cell;
}

// False: errno.
static inline bool image_write(const struct ring_image *image, const char *path, size_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool written = fd >= 0 && write(fd, image->bytes, size) == (ssize_t)size;

	if (fd >= 0)
		close(fd);
	return written;
}

#endif

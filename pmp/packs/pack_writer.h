// SPDX-License-Identifier: Apache-2.0
// Puts a pack together, in memory.
#ifndef STALL_PACK_WRITER_H
#define STALL_PACK_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/pack_format.h"

struct stall_pack_writer;

struct stall_error *stall_pack_writer_create(struct stall_pack_writer **ret);
void stall_pack_writer_destroy(struct stall_pack_writer *writer);
static inline void stall_pack_writer_destroyp(struct stall_pack_writer **writer)
{
	stall_pack_writer_destroy(*writer);
}

// Functions first, then objects, each by ascending address. A name that is empty or longer than
// STALL_PACK_MAX_LINKAGE is left out.
struct stall_error *stall_pack_writer_add(struct stall_pack_writer *writer, const char *linkage,
					  uint64_t address, uint64_t size, uint8_t info,
					  bool is_object);

// `header` has identity, name, machine, symbols and text_address; the rest is filled in. The bytes
// are valid until the writer is destroyed.
struct stall_error *stall_pack_writer_finish(struct stall_pack_writer *writer,
					     struct stall_pack_header *header, const char *layouts,
					     size_t layouts_size, uint32_t layout_count,
					     const uint8_t **ret, size_t *ret_size);

#endif

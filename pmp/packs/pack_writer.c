// SPDX-License-Identifier: Apache-2.0
#include "packs/pack_writer.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/array.h"
#include "base/cleanup.h"

// A pack is made once and copied to many hosts.
#define LEVEL 19

struct buffer {
	uint8_t *data;
	size_t size, capacity;
};

struct stall_pack_writer {
	ZSTD_CCtx *zstd;
	struct buffer table;	    // not packed
	struct buffer names;	    // of the block that is not full yet
	struct buffer packed_names; // the blocks before it
	struct buffer block_sizes;  // uint32_t each
	struct buffer file;
	uint64_t address; // of the symbol before
	uint32_t function_count, object_count, block_count;
};

static struct stall_error *reserve(struct buffer *buffer, size_t more)
{
	return stall_array_reserve(&buffer->data, buffer->size, more, &buffer->capacity)
		       ? NULL
		       : &stall_enomem;
}

static struct stall_error *append(struct buffer *buffer, const void *data, size_t size)
{
	struct stall_error *err = reserve(buffer, size);

	if (err)
		return err;
	if (size)
		memcpy(buffer->data + buffer->size, data, size);
	buffer->size += size;
	return NULL;
}

// LEB128, of at most ten bytes, into reserved room.
static void put_number(struct buffer *buffer, uint64_t value)
{
	do {
		uint8_t byte = value & 0x7f;

		value >>= 7;
		buffer->data[buffer->size++] = value ? byte | 0x80 : byte;
	} while (value);
}

struct stall_error *stall_pack_writer_create(struct stall_pack_writer **ret)
{
	_cleanup_(stall_pack_writer_destroyp) struct stall_pack_writer *writer =
		calloc(1, sizeof(*writer));

	if (!writer)
		return &stall_enomem;
	writer->zstd = ZSTD_createCCtx();
	if (!writer->zstd)
		return &stall_enomem;
	ZSTD_CCtx_setParameter(writer->zstd, ZSTD_c_compressionLevel, LEVEL);
	ZSTD_CCtx_setParameter(writer->zstd, ZSTD_c_checksumFlag, 1);
	*ret = no_cleanup_ptr(writer);
	return NULL;
}

void stall_pack_writer_destroy(struct stall_pack_writer *writer)
{
	if (!writer)
		return;
	ZSTD_freeCCtx(writer->zstd);
	free(writer->table.data);
	free(writer->names.data);
	free(writer->packed_names.data);
	free(writer->block_sizes.data);
	free(writer->file.data);
	free(writer);
}

static struct stall_error *compress_part(struct stall_pack_writer *writer, const void *data,
					 size_t size, struct buffer *to, uint32_t *ret_packed)
{
	size_t bound = ZSTD_compressBound(size);
	struct stall_error *err = reserve(to, bound);

	if (err)
		return err;
	size_t packed = ZSTD_compress2(writer->zstd, to->data + to->size, bound, data, size);
	if (ZSTD_isError(packed))
		return stall_error_create(STALL_ERROR_OTHER, "cannot compress: %s",
					  ZSTD_getErrorName(packed));
	to->size += packed;
	*ret_packed = (uint32_t)packed;
	return NULL;
}

static struct stall_error *finish_block(struct stall_pack_writer *writer)
{
	struct buffer *names = &writer->names;
	uint32_t packed;

	if (writer->block_count == STALL_PACK_MAX_BLOCKS)
		return stall_error_create(STALL_ERROR_LIMIT, "more names than a pack can have");
	memset(names->data + names->size, 0, STALL_PACK_BLOCK - names->size);
	struct stall_error *err = compress_part(writer, names->data, STALL_PACK_BLOCK,
						&writer->packed_names, &packed);
	if (!err)
		err = append(&writer->block_sizes, &packed, sizeof(packed));
	if (err)
		return err;
	names->size = 0;
	writer->block_count++;
	return NULL;
}

static struct stall_error *add_name(struct stall_pack_writer *writer, const char *name, size_t size)
{
	struct stall_error *err = NULL;

	if (!writer->names.data)
		err = reserve(&writer->names, STALL_PACK_BLOCK);
	if (!err && writer->names.size + size > STALL_PACK_BLOCK)
		err = finish_block(writer);
	return err ? err : append(&writer->names, name, size);
}

struct stall_error *stall_pack_writer_add(struct stall_pack_writer *writer, const char *linkage,
					  uint64_t address, uint64_t size, uint8_t info,
					  bool is_object)
{
	size_t length = strnlen(linkage, STALL_PACK_MAX_LINKAGE + 1);

	if (!length || length > STALL_PACK_MAX_LINKAGE)
		return NULL;
	if (writer->function_count + writer->object_count == STALL_PACK_MAX_SYMBOLS)
		return stall_error_create(STALL_ERROR_LIMIT, "more symbols than a pack can have");
	if (is_object && !writer->object_count)
		writer->address = 0;
	struct stall_error *err = add_name(writer, linkage, length + 1);
	if (!err)
		err = reserve(&writer->table, 40);
	if (err)
		return err;
	put_number(&writer->table, address - writer->address);
	put_number(&writer->table, size);
	writer->table.data[writer->table.size++] = info;
	put_number(&writer->table, length);
	writer->address = address;
	writer->function_count += !is_object;
	writer->object_count += is_object;
	return NULL;
}

static struct stall_error *append_part(struct stall_pack_writer *writer, const void *data,
				       size_t size, struct stall_pack_place *ret)
{
	*ret = (struct stall_pack_place){.offset = writer->file.size, .plain = (uint32_t)size};
	return compress_part(writer, data, size, &writer->file, &ret->packed);
}

static void add_checksum(struct buffer *file, const struct stall_pack_header *header)
{
	uLong crc = crc32(0, file->data, header->header_size);
	uint32_t checksum = (uint32_t)crc;

	memcpy(file->data + offsetof(struct stall_pack_header, checksum), &checksum,
	       sizeof(checksum));
}

struct stall_error *stall_pack_writer_finish(struct stall_pack_writer *writer,
					     struct stall_pack_header *header, const char *layouts,
					     size_t layouts_size, uint32_t layout_count,
					     const uint8_t **ret, size_t *ret_size)
{
	uint64_t last = writer->names.size;
	struct buffer *file = &writer->file;
	struct stall_error *err = last ? finish_block(writer) : NULL;

	if (err)
		return err;
	memcpy(header->magic, STALL_PACK_MAGIC, sizeof(header->magic));
	header->version = STALL_PACK_VERSION;
	header->header_size = sizeof(*header) + (uint32_t)writer->block_sizes.size;
	header->function_count = writer->function_count;
	header->object_count = writer->object_count;
	header->layout_count = layout_count;
	header->block_count = writer->block_count;
	header->names_size =
		last ? (uint64_t)(writer->block_count - 1) * STALL_PACK_BLOCK + last : 0;
	err = append(file, header, sizeof(*header));
	if (!err)
		err = append(file, writer->block_sizes.data, writer->block_sizes.size);
	if (!err)
		err = append_part(writer, layouts, layouts_size, &header->layouts);
	if (!err)
		err = append_part(writer, writer->table.data, writer->table.size, &header->table);
	header->names = (struct stall_pack_place){
		.offset = file->size,
		.packed = (uint32_t)writer->packed_names.size,
		.plain = STALL_PACK_BLOCK,
	};
	if (!err)
		err = append(file, writer->packed_names.data, writer->packed_names.size);
	if (err)
		return err;
	header->file_size = file->size;
	header->checksum = 0;
	memcpy(file->data, header, sizeof(*header));
	add_checksum(file, header);
	*ret = file->data;
	*ret_size = file->size;
	return NULL;
}

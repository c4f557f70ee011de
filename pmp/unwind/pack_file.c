// SPDX-License-Identifier: Apache-2.0
#include "unwind/pack_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/cleanup.h"
#include "base/lengths.h"
#include "proc/path_status.h"
#include "unwind/bytes.h"

// Unpacked blocks that are kept: neighbours in a file call one another.
#define KEPT_BLOCKS 16

struct block {
	char *text;	// with a NUL behind it; NULL: free
	uint32_t index; // of the pack
	uint64_t used;	// when
};

struct stall_pack {
	int fd;
	struct stall_pack_header header;
	uint64_t *block_ends; // in the file, relative to the first
	struct block kept[KEPT_BLOCKS];
	uint64_t uses;
	ZSTD_DCtx *zstd;
};

static struct stall_error *damaged(const char *what)
{
	return stall_error_create(STALL_ERROR_FORMAT, "not a sound pack: %s; make it again", what);
}

static struct stall_error *read_at(int fd, uint64_t offset, void *buf, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t n = pread(fd, (char *)buf + done, size - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return stall_error_os(errno, "cannot read the pack");
		if (n == 0)
			return damaged("it is torn");
		done += (size_t)n;
	}
	return NULL;
}

static bool is_text(const char *text, size_t size)
{
	return strnlen(text, size) < size;
}

static bool is_in_file(const struct stall_pack_header *header, const struct stall_pack_place *place)
{
	return place->offset >= header->header_size &&
	       stall_fits(place->offset, place->packed, header->file_size);
}

static struct stall_error *check_counts(const struct stall_pack_header *header)
{
	uint64_t symbols = (uint64_t)header->function_count + header->object_count;

	if (header->block_count > STALL_PACK_MAX_BLOCKS || symbols > STALL_PACK_MAX_SYMBOLS ||
	    header->table.plain > STALL_PACK_MAX_TABLE ||
	    header->layouts.plain > STALL_PACK_MAX_LAYOUTS ||
	    header->file_size > STALL_PACK_MAX_FILE)
		return stall_error_create(STALL_ERROR_LIMIT,
					  "a pack beyond the limits that are read");
	if (header->names.plain != STALL_PACK_BLOCK ||
	    header->names_size > (uint64_t)header->block_count * STALL_PACK_BLOCK)
		return damaged("its names are of another size");
	if (!is_in_file(header, &header->table) || !is_in_file(header, &header->layouts) ||
	    !is_in_file(header, &header->names))
		return damaged("a part is beyond its end");
	return NULL;
}

static struct stall_error *check_start(const struct stall_pack_header *header, uint64_t size)
{
	if (memcmp(header->magic, STALL_PACK_MAGIC, sizeof(header->magic)) != 0)
		return stall_error_create(STALL_ERROR_FORMAT, "not a pack");
	if (header->version != STALL_PACK_VERSION)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "a pack of format %u; this version reads %u",
					  header->version, STALL_PACK_VERSION);
	if (header->file_size != size)
		return damaged("it is torn");
	if (header->block_count > STALL_PACK_MAX_BLOCKS ||
	    header->header_size != sizeof(*header) + (size_t)header->block_count * sizeof(uint32_t))
		return damaged("its header is of another size");
	return NULL;
}

static struct stall_error *check_identity(const struct stall_pack_header *header,
					  const char *identity)
{
	if (!is_text(header->identity, sizeof(header->identity)) ||
	    !stall_identity_is_valid(header->identity) ||
	    !is_text(header->name, sizeof(header->name)))
		return damaged("it does not say whose names it has");
	if (identity && strcmp(header->identity, identity) != 0)
		return stall_error_create(STALL_ERROR_FORMAT,
					  "a pack of another build: %s; rename it, or make one",
					  header->identity);
	return NULL;
}

static uint32_t checksum(const struct stall_pack_header *header, const uint32_t *packed)
{
	struct stall_pack_header copy = *header;

	copy.checksum = 0;
	uLong crc = crc32(0, (const Bytef *)&copy, sizeof(copy));
	return (uint32_t)crc32(crc, (const Bytef *)packed, header->block_count * sizeof(*packed));
}

// Sums up the sizes of the blocks.
static struct stall_error *read_blocks(struct stall_pack *pack)
{
	const struct stall_pack_header *header = &pack->header;
	_cleanup_free_ uint32_t *packed = calloc(header->block_count + 1, sizeof(*packed));
	uint64_t end = 0;

	pack->block_ends = calloc(header->block_count + 1, sizeof(*pack->block_ends));
	if (!packed || !pack->block_ends)
		return &stall_enomem;
	struct stall_error *err =
		read_at(pack->fd, sizeof(*header), packed, header->block_count * sizeof(*packed));
	if (err)
		return err;
	if (checksum(header, packed) != header->checksum)
		return damaged("the checksum of its header is wrong");
	for (uint32_t i = 0; i < header->block_count; i++) {
		end += packed[i];
		pack->block_ends[i] = end;
	}
	return end == header->names.packed ? NULL : damaged("a part is beyond its end");
}

static struct stall_error *read_header(struct stall_pack *pack, const char *identity)
{
	struct stall_path_status status;

	if (!stall_fd_status(pack->fd, &status))
		return stall_error_os(errno, "cannot read the pack");
	if (!S_ISREG(status.mode) || status.size < sizeof(pack->header))
		return stall_error_create(STALL_ERROR_FORMAT, "not a pack, or a torn one");
	struct stall_error *err = read_at(pack->fd, 0, &pack->header, sizeof(pack->header));
	if (!err)
		err = check_start(&pack->header, status.size);
	if (!err)
		err = read_blocks(pack);
	if (!err)
		err = check_counts(&pack->header);
	if (!err)
		err = check_identity(&pack->header, identity);
	return err;
}

struct stall_error *stall_pack_open(int fd, const char *identity, struct stall_pack **ret)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = calloc(1, sizeof(*pack));

	if (!pack) {
		close(fd);
		return &stall_enomem;
	}
	pack->fd = fd;
	pack->zstd = ZSTD_createDCtx();
	if (!pack->zstd)
		return &stall_enomem;
	struct stall_error *err = read_header(pack, identity);
	if (err)
		return err;
	*ret = no_cleanup_ptr(pack);
	return NULL;
}

void stall_pack_destroy(struct stall_pack *pack)
{
	if (!pack)
		return;
	close(pack->fd);
	for (size_t i = 0; i < KEPT_BLOCKS; i++)
		free(pack->kept[i].text);
	ZSTD_freeDCtx(pack->zstd);
	free(pack->block_ends);
	free(pack);
}

const struct stall_pack_header *stall_pack_header(const struct stall_pack *pack)
{
	return &pack->header;
}

// Exactly `plain` bytes, with a NUL behind them.
static struct stall_error *unpack(const struct stall_pack *pack, uint64_t offset, uint32_t packed,
				  uint32_t plain, char *ret)
{
	_cleanup_free_ uint8_t *data = malloc((size_t)packed + 1);

	if (!data)
		return &stall_enomem;
	struct stall_error *err = read_at(pack->fd, offset, data, packed);
	if (err)
		return err;
	if (ZSTD_decompressDCtx(pack->zstd, ret, plain, data, packed) != plain)
		return damaged("a part does not unpack");
	ret[plain] = '\0';
	return NULL;
}

// Names follow one another, each with its NUL; none lies in two blocks.
static bool next_name(uint64_t *at, uint64_t length, uint64_t names_size, uint32_t *ret)
{
	if (!length || length > STALL_PACK_MAX_LINKAGE)
		return false;
	if (*at % STALL_PACK_BLOCK + length + 1 > STALL_PACK_BLOCK)
		*at += STALL_PACK_BLOCK - *at % STALL_PACK_BLOCK;
	if (!stall_fits(*at, length + 1, names_size))
		return false;
	*ret = (uint32_t)*at;
	*at += length + 1;
	return true;
}

static struct stall_error *visit_table(const struct stall_pack_header *header,
				       struct stall_bytes *table, stall_pack_visit *visit,
				       void *arg)
{
	uint32_t count = header->function_count + header->object_count;
	struct stall_pack_symbol symbol = {};
	uint64_t at = 0;

	for (uint32_t i = 0; i < count; i++) {
		symbol.is_object = i >= header->function_count;
		if (i == header->function_count)
			symbol.address = 0;
		uint64_t step = stall_bytes_uleb(table);
		symbol.size = stall_bytes_uleb(table);
		symbol.info = (uint8_t)stall_bytes_number(table, 1);
		uint64_t length = stall_bytes_uleb(table);

		if (table->torn || !stall_add(symbol.address, step, &symbol.address) ||
		    !next_name(&at, length, header->names_size, &symbol.name))
			return damaged("its table of symbols");
		if (!visit(arg, &symbol))
			return NULL;
	}
	return NULL;
}

struct stall_error *stall_pack_each(const struct stall_pack *pack, stall_pack_visit *visit,
				    void *arg)
{
	const struct stall_pack_place *place = &pack->header.table;
	_cleanup_free_ char *table = malloc((size_t)place->plain + 1);

	if (!table)
		return &stall_enomem;
	struct stall_error *err = unpack(pack, place->offset, place->packed, place->plain, table);
	if (err)
		return err;
	struct stall_bytes bytes = stall_bytes_of((const uint8_t *)table, place->plain);
	return visit_table(&pack->header, &bytes, visit, arg);
}

// The block, unpacked now or earlier. NULL: it is damaged, or memory is missing.
static const char *get_block(struct stall_pack *pack, uint32_t index)
{
	struct block *oldest = &pack->kept[0];

	for (size_t i = 0; i < KEPT_BLOCKS; i++) {
		struct block *block = &pack->kept[i];

		if (block->text && block->index == index) {
			block->used = ++pack->uses;
			return block->text;
		}
		oldest = block->used < oldest->used ? block : oldest;
	}
	uint64_t start = index ? pack->block_ends[index - 1] : 0;
	_cleanup_free_ char *text = no_cleanup_ptr(oldest->text);
	oldest->used = 0;
	if (!text)
		text = malloc(STALL_PACK_BLOCK + 1);
	if (!text)
		return NULL;
	struct stall_error *err =
		unpack(pack, pack->header.names.offset + start,
		       (uint32_t)(pack->block_ends[index] - start), STALL_PACK_BLOCK, text);
	if (err) {
		stall_error_destroy(err);
		return NULL;
	}
	*oldest = (struct block){no_cleanup_ptr(text), index, ++pack->uses};
	return oldest->text;
}

const char *stall_pack_name(struct stall_pack *pack, uint32_t name)
{
	if (name >= pack->header.names_size)
		return NULL;
	const char *block = get_block(pack, name / STALL_PACK_BLOCK);
	if (!block)
		return NULL;
	const char *text = block + name % STALL_PACK_BLOCK;
	return *text && strlen(text) <= STALL_PACK_MAX_LINKAGE ? text : NULL;
}

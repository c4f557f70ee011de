// SPDX-License-Identifier: Apache-2.0
// The input is a pack. Its header gets the right checksum, as an attacker would write it. Then the
// input is taken for the table and the names of another pack, whose compressed parts are sound, since
// a damaged one does not get beyond zstd.
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "fuzz.h"
#include "inputs.h"
#include "unwind/pack_file.h"
#include "unwind/symbols.h"

#define LOOKUPS 512

static void look_up(struct stall_symbols *symbols, uint64_t address)
{
	struct stall_symbol symbol;

	if (stall_symbols_find_function(symbols, address, &symbol)) {
		if (address - symbol.address >= symbol.size ||
		    strlen(symbol.linkage) > STALL_PACK_MAX_LINKAGE)
			abort();
		free(symbol.linkage);
	}
	if (stall_symbols_find_object(symbols, address, &symbol))
		free(symbol.linkage);
}

static void read_pack(const uint8_t *data, size_t size)
{
	struct stall_symbols *symbols = NULL;
	struct stall_pack *pack = NULL;
	struct stall_symbol symbol;
	struct stall_error *err = stall_pack_open(file_of(data, size), NULL, &pack);

	if (!err)
		err = stall_symbols_create(NULL, NULL, pack, &symbols);
	if (err) {
		stall_error_destroy(err);
		stall_pack_destroy(pack);
		return;
	}
	for (uint64_t i = 0; i < LOOKUPS; i++)
		look_up(symbols, i * i * 64);
	look_up(symbols, UINT64_MAX);
	if (stall_symbols_find_name(symbols, "server_version", &symbol))
		free(symbol.linkage);
	stall_symbols_destroy(symbols);
	stall_pack_destroy(pack);
}

static void sign(uint8_t *pack, size_t header_size)
{
	const size_t at = offsetof(struct stall_pack_header, checksum);

	memset(pack + at, 0, 4);
	uint32_t sum = (uint32_t)crc32(0, pack, (uInt)header_size);
	memcpy(pack + at, &sum, 4);
}

static void read_signed(const uint8_t *data, size_t size)
{
	struct stall_pack_header header;
	uint8_t *copy = malloc(size);

	if (!copy)
		return;
	memcpy(copy, data, size);
	memcpy(&header, data, sizeof(header));
	// Else nothing but a damaged size would be tried.
	header.file_size = size;
	memcpy(copy, &header, sizeof(header));
	if (header.header_size <= size)
		sign(copy, header.header_size);
	read_pack(copy, size);
	free(copy);
}

// Magic, version, identity and counts are those of the input.
static void read_as_parts(const uint8_t *data, size_t size)
{
	static uint8_t file[1 << 20], block[STALL_PACK_BLOCK];
	struct stall_pack_header header;
	size_t part = size - sizeof(header), start = sizeof(header) + 4;

	memcpy(&header, data, sizeof(header));
	part = part < STALL_PACK_BLOCK ? part : STALL_PACK_BLOCK;
	memset(block, 'a', sizeof(block));
	memcpy(block, data + size - part, part);
	size_t table =
		ZSTD_compress(file + start, sizeof(file) / 2, data + sizeof(header), part, 1);
	size_t names =
		ZSTD_compress(file + start + table, sizeof(file) / 4, block, sizeof(block), 1);
	if (ZSTD_isError(table) || ZSTD_isError(names))
		return;
	header.block_count = 1;
	header.names_size = STALL_PACK_BLOCK;
	header.header_size = (uint32_t)start;
	header.function_count %= 100000;
	header.object_count %= 100000;
	header.table = (struct stall_pack_place){start, (uint32_t)table, (uint32_t)part};
	header.layouts = (struct stall_pack_place){start, 0, 0};
	header.names = (struct stall_pack_place){start + table, (uint32_t)names, STALL_PACK_BLOCK};
	header.file_size = start + table + names;
	uint32_t packed = (uint32_t)names;
	memcpy(file, &header, sizeof(header));
	memcpy(file + sizeof(header), &packed, 4);
	sign(file, start);
	read_pack(file, start + table + names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size <= sizeof(struct stall_pack_header))
		return 0;
	read_signed(data, size);
	read_as_parts(data, size);
	return 0;
}

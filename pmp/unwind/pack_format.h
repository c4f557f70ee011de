// SPDX-License-Identifier: Apache-2.0
// A pack as it is in its file: docs/pack-format.md. Numbers are little-endian.
#ifndef STALL_PACK_FORMAT_H
#define STALL_PACK_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "unwind/elf_identity.h"

#define STALL_PACK_MAGIC "STLLPACK"
#define STALL_PACK_VERSION 1
#define STALL_PACK_SUFFIX ".pack"

#define STALL_PACK_BLOCK (128U << 10)	   // of names, unpacked
#define STALL_PACK_MAX_BLOCKS 4096U	   // 512 MB of names
#define STALL_PACK_MAX_SYMBOLS 4000000U	   // MySQL 9.7 with debug information has 300,000
#define STALL_PACK_MAX_TABLE (128U << 20)  // the table of symbols, unpacked
#define STALL_PACK_MAX_LAYOUTS (4U << 20)  // their text, unpacked
#define STALL_PACK_MAX_FILE (256ULL << 20) // a real one has some MB
#define STALL_PACK_MAX_LINKAGE 8191	   // bytes of a name

enum stall_pack_symbols {
	STALL_PACK_SYMTAB = 1,
	STALL_PACK_MINIDEBUG,
	STALL_PACK_DYNSYM,
};

struct stall_pack_place {
	uint64_t offset;	// in the file
	uint32_t packed, plain; // bytes
};
_Static_assert(sizeof(struct stall_pack_place) == 16, "the format of version 1");

struct stall_pack_header {
	char magic[8];
	uint32_t version;
	uint32_t header_size; // of this and of the sizes of the blocks behind it
	uint64_t file_size;
	uint32_t checksum; // CRC-32 of the header with 0 here
	uint16_t machine;  // e_machine
	uint8_t symbols;   // enum stall_pack_symbols
	uint8_t reserved;
	uint64_t text_address; // stall_elf_text_address()
	uint32_t function_count, object_count;
	uint32_t layout_count; // lines
	uint32_t block_count;
	uint64_t names_size;
	struct stall_pack_place table, layouts;
	struct stall_pack_place names; // all blocks; `plain` is that of one, of the last too
	char identity[STALL_IDENTITY_MAX];
	char name[128]; // of the file, without its folder; shown only
			// uint32_t block_packed[block_count];
};
_Static_assert(sizeof(struct stall_pack_header) == 336, "the format of version 1");
_Static_assert(offsetof(struct stall_pack_header, checksum) == 24, "the format of version 1");
_Static_assert(offsetof(struct stall_pack_header, table) == 64, "the format of version 1");
_Static_assert(offsetof(struct stall_pack_header, identity) == 112, "the format of version 1");
_Static_assert(offsetof(struct stall_pack_header, name) == 208, "the format of version 1");

#endif

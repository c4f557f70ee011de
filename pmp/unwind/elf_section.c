// SPDX-License-Identifier: Apache-2.0
#include "unwind/elf_section.h"

#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include "base/cleanup.h"
#include "base/lengths.h"

#define PACKED_BY_ZSTD 2 // ELFCOMPRESS_ZSTD, which glibc 2.36 has no name for

bool stall_elf_place_is_readable(const struct stall_elf *elf, const struct stall_elf_place *place,
				 size_t limit)
{
	return place->size && place->size <= limit &&
	       stall_fits(place->offset, place->stored, elf->size);
}

bool stall_elf_place_find(const struct stall_elf *elf, const char *name, size_t limit,
			  struct stall_elf_place *ret)
{
	const Elf64_Shdr *section = stall_elf_section(elf, name);

	if (!section || section->sh_type == SHT_NOBITS)
		return false;
	*ret = (struct stall_elf_place){.offset = section->sh_offset,
					.stored = section->sh_size,
					.size = section->sh_size,
					.address = section->sh_addr};
	if (section->sh_flags & SHF_COMPRESSED) {
		Elf64_Chdr packed = {};
		struct stall_error *err =
			stall_elf_read(elf, section->sh_offset, &packed, sizeof(packed));

		if (err || section->sh_size < sizeof(packed) || !packed.ch_type) {
			stall_error_destroy(err);
			return false;
		}
		ret->packed_by = packed.ch_type;
		ret->offset += sizeof(packed);
		ret->stored -= sizeof(packed);
		ret->size = packed.ch_size;
	}
	return stall_elf_place_is_readable(elf, ret, limit);
}

static bool unpack(const struct stall_elf_place *place, const uint8_t *packed, uint8_t *ret)
{
	uLongf size = place->size;

	if (place->packed_by == ELFCOMPRESS_ZLIB)
		return uncompress(ret, &size, packed, place->stored) == Z_OK && size == place->size;
	if (place->packed_by == PACKED_BY_ZSTD)
		return ZSTD_decompress(ret, place->size, packed, place->stored) == place->size;
	return false;
}

struct stall_error *stall_elf_place_load(const struct stall_elf *elf,
					 const struct stall_elf_place *place, size_t limit,
					 uint8_t **ret)
{
	_cleanup_free_ uint8_t *stored = NULL;
	struct stall_error *err = stall_elf_load(elf, place->offset, place->stored, limit, &stored);

	if (err || !place->packed_by) {
		if (!err)
			*ret = no_cleanup_ptr(stored);
		return err;
	}
	_cleanup_free_ uint8_t *unpacked = malloc(place->size + 1);
	if (!unpacked)
		return &stall_enomem;
	if (!unpack(place, stored, unpacked))
		return stall_error_create(STALL_ERROR_FORMAT,
					  "a compressed section does not unpack");
	unpacked[place->size] = 0;
	*ret = no_cleanup_ptr(unpacked);
	return NULL;
}

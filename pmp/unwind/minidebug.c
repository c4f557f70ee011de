// SPDX-License-Identifier: Apache-2.0
#include "unwind/minidebug.h"

#include <lzma.h>
#include <stdlib.h>

#include "base/cleanup.h"

#define MAX_COMPRESSED (32U << 20)
#define MAX_UNPACKED (256U << 20)
#define DECODER_MEMORY (128U << 20)

// Unpacks in growing steps, so that a small file that unpacks to gigabytes costs only the limit.
static struct stall_error *unpack(const uint8_t *packed, size_t size, uint8_t **ret,
				  size_t *ret_size)
{
	lzma_stream stream = LZMA_STREAM_INIT;
	_cleanup_free_ uint8_t *out = NULL;
	size_t capacity = 0;
	lzma_ret rc = lzma_stream_decoder(&stream, DECODER_MEMORY, 0);

	stream.next_in = packed;
	stream.avail_in = size;
	while (rc == LZMA_OK) {
		if (stream.total_out == capacity) {
			capacity = capacity ? capacity * 2 : 4 * size + 4096;
			uint8_t *grown = capacity > MAX_UNPACKED ? NULL : realloc(out, capacity);

			if (!grown) {
				rc = LZMA_MEM_ERROR;
				break;
			}
			out = grown;
		}
		stream.next_out = out + stream.total_out;
		stream.avail_out = capacity - stream.total_out;
		rc = lzma_code(&stream, LZMA_FINISH);
	}
	*ret_size = stream.total_out;
	lzma_end(&stream);
	if (rc != LZMA_STREAM_END)
		return stall_error_create(STALL_ERROR_FORMAT,
					  ".gnu_debugdata does not unpack (lzma error %d)", rc);
	*ret = no_cleanup_ptr(out);
	return NULL;
}

struct stall_error *stall_minidebug_open(const struct stall_elf *elf, struct stall_elf **ret)
{
	const Elf64_Shdr *section = stall_elf_section(elf, ".gnu_debugdata");
	_cleanup_free_ uint8_t *packed = NULL;
	uint8_t *image = NULL;
	size_t size = 0;

	if (!section || section->sh_type == SHT_NOBITS)
		return NULL;
	struct stall_error *err =
		stall_elf_load(elf, section->sh_offset, section->sh_size, MAX_COMPRESSED, &packed);
	if (!err)
		err = unpack(packed, section->sh_size, &image, &size);
	if (err)
		return err;
	return stall_elf_open_image(image, size, true, ret);
}

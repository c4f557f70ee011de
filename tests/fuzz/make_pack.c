// SPDX-License-Identifier: Apache-2.0
// make-pack FILE: a small pack.
#include <stdio.h>
#include <string.h>

#include "base/output.h"
#include "packs/pack_writer.h"

int main(int argc, char **argv)
{
	struct stall_pack_header header = {.machine = 62,
					   .symbols = STALL_PACK_SYMTAB,
					   .identity = "0123456789abcdef"};
	struct stall_pack_writer *writer = NULL;
	struct stall_output *output = NULL;
	const uint8_t *bytes = NULL;
	size_t size = 0;
	char name[64];

	struct stall_error *err = stall_pack_writer_create(&writer);
	for (unsigned int i = 0; !err && i < 200; i++) {
		snprintf(name, sizeof(name), "_ZN4name%uEv", i);
		err = stall_pack_writer_add(writer, name, 64 * i, 1 + i % 64, 2, i >= 150);
	}
	if (!err)
		err = stall_pack_writer_finish(writer, &header, "A#size=1\n", 9, 1, &bytes, &size);
	if (!err)
		err = stall_output_create(argc > 1 ? argv[1] : NULL, true, &output);
	if (!err)
		err = stall_output_write(output, bytes, size);
	if (!err)
		err = stall_output_commit(output);
	if (err)
		fprintf(stderr, "make-pack: %s\n", err->message);
	stall_output_destroy(output);
	stall_pack_writer_destroy(writer);
	return err ? 1 : 0;
}

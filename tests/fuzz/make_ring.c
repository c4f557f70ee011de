// SPDX-License-Identifier: Apache-2.0
// make-ring FILE: a valid ring with data in each of its parts, for fuzz_ring.c to damage.
#include "ring_image.h"

int main(int argc, char **argv)
{
	struct ring_image image = image_create(4711, 1);

	for (size_t i = 0; i < IMAGE_SLOTS; i++) {
		image_wait(&image, i, (pid_t)(4711 + i), (enum stall_ring_call)(i % 4 + 1),
			   0x1000 * (i / 2 + 1), 1000 + i);
		image_set_word(image_wait_stack(&image, i, 512, 512, 2000 + i)->words, 8, 4711);
	}
	for (uint64_t i = 0; i < IMAGE_CELLS; i++)
		image_record(&image, i, STALL_RECORD_WAKER, 4711, 0x1000, 3000 + i);
	image_set_maps(&image, "00400000-00401000 r-xp 00000000 08:01 42 /usr/sbin/imagined\n"
			       "00401000-00402000 rw-p 00001000 08:01 42 /usr/sbin/imagined\n"
			       "7ffc0000-7ffc1000 rw-p 00000000 00:00 0 [stack]\n");
	return argc == 2 && image_write(&image, argv[1], image.header->file_size) ? 0 : 1;
}

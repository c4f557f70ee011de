// SPDX-License-Identifier: Apache-2.0
// The shared memory of a PostgreSQL, damaged as the input says: places of a byte or a pointer, and what
// they get.
#include <stdint.h>
#include <stdlib.h>

#include "fuzz.h"
#include "introspect/postgres_entries.h"
#include "introspect/postgres_locks.h"
#include "postgres_image.h"

#define RECORD 5

static const int versions[] = {906, 1000, 1200, 1400, 1700, 1800};

static struct postgres_image *make(uint8_t choice)
{
	struct postgres_image *image =
		image_create(versions[choice % (sizeof(versions) / sizeof(*versions))]);

	for (int i = 0; i < IMAGE_BACKENDS; i++)
		image_backend(image, i, 3, 2, "SELECT 1");
	for (int lock = 0; lock < 2; lock++) {
		image_make_lock(image, lock, 5, 745, 0);
		image_hold(image, lock * 4, lock, lock * 4, 1 << 7);
		for (int i = 1; i < 4; i++)
			image_wait(image, lock * 4 + i, lock, lock * 4 + i, 5);
	}
	return image;
}

static void damage(struct postgres_image *image, const uint8_t *record)
{
	size_t used = (size_t)(image->nodes - image->shared) + IMAGE_NODES * IMAGE_NODE;
	size_t at = (record[0] | (size_t)record[1] << 8) % used;

	if (record[4] & 1)
		image->shared[at] = record[2];
	else
		image_u64(image->shared + at / 8 * 8,
			  (uint64_t)image->shared +
				  (record[2] | (uint64_t)record[3] << 8) % IMAGE_SIZE / 8 * 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stall_postgres_server server;
	struct stall_sessions sessions = {};
	struct stall_postgres_waits waits = {};
	bool found = false;

	if (!size)
		return 0;
	struct postgres_image *image = make(data[0]);
	for (size_t at = 1; at + RECORD <= size && at < 64 * RECORD; at += RECORD)
		damage(image, data + at);
	stall_error_destroy(stall_postgres_server_init(&server, &image->snapshot, image->symbols,
						       NULL, image->backends, IMAGE_BACKENDS,
						       &found));
	if (found) {
		stall_error_destroy(stall_postgres_read_procs(&server));
		stall_error_destroy(stall_postgres_read_entries(&server, &sessions));
		stall_error_destroy(stall_postgres_read_locks(&server, &waits));
	}
	for (size_t i = 0; i < sessions.count; i++)
		if (sessions.sessions[i].thread >= IMAGE_BACKENDS)
			abort();
	for (size_t i = 0; i < waits.count; i++)
		if (waits.waits[i].owner != STALL_POSTGRES_NO_OWNER &&
		    waits.waits[i].owner >= IMAGE_BACKENDS)
			abort();
	stall_postgres_server_deinit(&server);
	stall_sessions_deinit(&sessions);
	stall_postgres_waits_deinit(&waits);
	image_destroy(image);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Which file a wait is for, and what it is called.
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "inproc/recorder_private.h"

// As the BPF programs do it (waits_files.bpf.h).
static uint64_t hash_path(const char *path)
{
	uint64_t hash = 0xcbf29ce484222325;

	for (uint32_t at = 0; at < STALL_PATH;) {
		uint64_t word = 0;
		for (uint32_t i = 0; i < sizeof(word) && path[at]; i++, at++)
			word |= (uint64_t)(uint8_t)path[at] << 8 * i;
		if (!word)
			break;
		hash = (hash ^ word) * 0x9e3779b97f4a7c15 + (hash >> 29);
		if (!path[at])
			break;
	}
	return hash;
}

void recorder_file_key(const struct recorder_wait *wait, struct stall_wait_key *key,
		       uint32_t *ret_mode)
{
	const struct stat *st = wait->st;
	struct stat own;

	if (wait->path) {
		key->id = hash_path(wait->path);
		return;
	}
	if (wait->kind == STALL_WAIT_MSYNC) {
		key->id = wait->object;
		return;
	}
	if (!st && wait->fd >= 0 && !raw_call2(SYS_fstat, wait->fd, &own))
		st = &own;
	if (!st)
		return;
	key->id = st->st_ino;
	// The kernel's own encoding; user space is not told of generations.
	key->id2 = (uint64_t)(major(st->st_dev) << 20 | minor(st->st_dev)) << 32;
	*ret_mode = st->st_mode;
}

static uint32_t keep_end(char *name, const char *path, uint32_t size)
{
	uint32_t length = strlen(path);

	if (length >= size) {
		path += length - (size - 1);
		length = size - 1;
	}
	recorder_copy(name, path, length);
	name[length] = '\0';
	return length;
}

static void read_link(char *name, int fd, uint32_t size)
{
	char link[32] = "/proc/self/fd/", path[512];
	char *at = link + strlen(link), digits[12];
	uint32_t count = 0;

	do
		digits[count++] = '0' + fd % 10;
	while (fd /= 10);
	while (count)
		*at++ = digits[--count];
	*at = '\0';
	long n = raw_call3(SYS_readlink, link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	keep_end(name, path, size);
}

void recorder_file_name(struct recorder_ring *ring, struct stall_wait_stat *stat, uint64_t tag,
			const struct recorder_wait *wait, uint32_t mode)
{
	uint64_t offset = ring->layout.names_offset +
			  recorder_stat_index(ring, stat) * sizeof(struct stall_ring_name);
	struct stall_ring_name *name = recorder_ring_at(ring, offset);

	__atomic_store_n(&stat->told, 1, __ATOMIC_RELAXED);
	if (!recorder_ring_has(ring, offset, sizeof(*name))) {
		recorder_ring_lost(ring, STALL_LOST_FILES_FULL);
		return;
	}
	__atomic_store_n(&name->tag, 0, __ATOMIC_RELAXED);
	recorder_write_barrier();
	name->mode = mode;
	if (wait->path)
		keep_end(name->path, wait->path, sizeof(name->path));
	else
		read_link(name->path, wait->fd, sizeof(name->path));
	if (!name->path[0])
		recorder_ring_lost(ring, STALL_LOST_PATH_READ);
	__atomic_store_n(&name->tag, tag, __ATOMIC_RELEASE);
}

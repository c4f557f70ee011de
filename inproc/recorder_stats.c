// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_stats.h"

#include <fcntl.h>
#include <string.h>
#include <sys/sysmacros.h>

#define MAX_TRIES 4 // to raise a maximum that others raise too

static uint64_t offset_of(const struct recorder_ring *ring, uint32_t index)
{
	return ring->layout.stats_offset + index * sizeof(struct stall_wait_stat);
}

static struct stall_wait_stat *stat_at(const struct recorder_ring *ring, uint32_t index)
{
	return recorder_ring_at(ring, offset_of(ring, index));
}

uint32_t recorder_stat_index(const struct recorder_ring *ring, const struct stall_wait_stat *stat)
{
	return stat - stat_at(ring, 0);
}

bool recorder_stat_is_own(const struct recorder_ring *ring, const struct stall_wait_stat *stat)
{
	return recorder_stat_index(ring, stat) < ring->layout.stat_count;
}

static uint64_t tag_of(const struct stall_wait_stat *stat)
{
	return __atomic_load_n(&stat->tag, __ATOMIC_ACQUIRE);
}

struct stall_wait_stat *recorder_stat_find(struct recorder_ring *ring, uint64_t tag)
{
	uint32_t mask = ring->layout.stat_count - 1;

	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		uint32_t index = (tag + i) & mask;
		struct stall_wait_stat *stat = stat_at(ring, index);

		if (recorder_ring_has_already(ring, offset_of(ring, index), sizeof(*stat)) &&
		    tag_of(stat) == tag)
			return stat;
	}
	return NULL;
}

static struct stall_wait_stat *make(struct recorder_ring *ring, const struct stall_wait_key *key,
				    uint64_t tag)
{
	uint32_t mask = ring->layout.stat_count - 1;

	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		uint32_t index = (tag + i) & mask;
		struct stall_wait_stat *stat = stat_at(ring, index);

		if (!recorder_ring_has(ring, offset_of(ring, index), sizeof(*stat)))
			break;
		__u64 old = tag_of(stat);
		bool is_ours =
			!old && __atomic_compare_exchange_n(&stat->tag, &old, tag, false,
							    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		if (is_ours) {
			stat->key = *key;
			recorder_write_barrier();
			__atomic_store_n(&stat->used, 1, __ATOMIC_RELEASE);
		}
		if (is_ours || old == tag)
			return stat;
	}
	recorder_ring_lost(ring, STALL_LOST_KEYS_FULL);
	return stat_at(ring, mask + 1 + key->kind);
}

struct stall_wait_stat *recorder_stat_take(struct recorder_ring *ring,
					   const struct stall_wait_key *key, uint64_t tag)
{
	struct stall_wait_stat *stat = recorder_stat_find(ring, tag);

	return stat ? stat : make(ring, key, tag);
}

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t bucket = ns ? 63 - __builtin_clzll(ns) : 0;

	return bucket < STALL_WAIT_BUCKETS ? bucket : STALL_WAIT_BUCKETS - 1;
}

static void raise_maximum(__u64 *maximum, __u64 ns)
{
	__u64 seen = __atomic_load_n(maximum, __ATOMIC_RELAXED);

	for (int i = 0; i < MAX_TRIES && seen < ns; i++) {
		if (__atomic_compare_exchange_n(maximum, &seen, ns, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			break;
	}
}

void recorder_stat_count(struct stall_wait_stat *stat, uint64_t ns, uint64_t now)
{
	__atomic_fetch_add(&stat->bucket[bucket_of(ns)], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stat->total_ns, ns, __ATOMIC_RELAXED);
	__atomic_store_n(&stat->last_ns, now, __ATOMIC_RELAXED);
	raise_maximum(&stat->max_ns, ns);
}

void recorder_stat_count_alike(struct stall_wait_stat *stat, uint64_t ns, uint64_t count)
{
	__atomic_fetch_add(&stat->bucket[bucket_of(ns)], count, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stat->total_ns, ns * count, __ATOMIC_RELAXED);
}

/* Files. */

// As the BPF programs do it (files.bpf.c).
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

bool recorder_file_status(int fd, struct stat *ret)
{
	struct statx status;
	long rc = raw_call5(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
			    STATX_BASIC_STATS, &status);

	// Before Linux 4.11, and in containers of that time. The kernel's struct stat is that of glibc
	// on x86-64; fstat() is none of glibc 2.17's.
	if (rc == -ENOSYS || rc == -EPERM)
		return !raw_call2(SYS_fstat, fd, ret);
	if (rc)
		return false;
	ret->st_dev = makedev(status.stx_dev_major, status.stx_dev_minor);
	ret->st_ino = status.stx_ino;
	ret->st_mode = status.stx_mode;
	ret->st_size = (off_t)status.stx_size;
	return true;
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
	if (!st && wait->fd >= 0 && recorder_file_status(wait->fd, &own))
		st = &own;
	if (!st)
		return;
	key->id = st->st_ino;
	// The kernel's own encoding; user space does not see generations.
	key->id2 = (uint64_t)(major(st->st_dev) << 20 | minor(st->st_dev)) << 32;
	*ret_mode = st->st_mode;
}

static uint32_t copy_path_end(char *name, const char *path, uint32_t size)
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
	copy_path_end(name, path, size);
}

void recorder_file_name(struct recorder_ring *ring, struct stall_wait_stat *stat, uint64_t tag,
			const struct recorder_wait *wait, uint32_t mode)
{
	uint64_t offset = ring->layout.names_offset +
			  recorder_stat_index(ring, stat) * sizeof(struct stall_ring_name);
	struct stall_ring_name *name = recorder_ring_at(ring, offset);

	__atomic_store_n(&stat->announced, 1, __ATOMIC_RELAXED);
	if (!recorder_ring_has(ring, offset, sizeof(*name))) {
		recorder_ring_lost(ring, STALL_LOST_FILES_FULL);
		return;
	}
	__atomic_store_n(&name->tag, 0, __ATOMIC_RELAXED);
	recorder_write_barrier();
	name->mode = mode;
	if (wait->path)
		copy_path_end(name->path, wait->path, sizeof(name->path));
	else
		read_link(name->path, wait->fd, sizeof(name->path));
	if (!name->path[0])
		recorder_ring_lost(ring, STALL_LOST_PATH_READ);
	__atomic_store_n(&name->tag, tag, __ATOMIC_RELEASE);
}

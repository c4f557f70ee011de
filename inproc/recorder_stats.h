/* SPDX-License-Identifier: Apache-2.0 */
/* A stat for each key, as the BPF programs keep them (ebpf/programs/waits/stats.bpf.h): for each lock, and for
 * each file with its name. */
#ifndef STALL_RECORDER_STATS_H
#define STALL_RECORDER_STATS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "inproc/recorder_memory.h"
#include "inproc/recorder_wait.h"

/* The stat of the key, made where there is none; that of its kind where there is no room. */
struct stall_wait_stat *recorder_stat_take(struct recorder_ring *ring,
					   const struct stall_wait_key *key, uint64_t tag);
struct stall_wait_stat *recorder_stat_find(struct recorder_ring *ring, uint64_t tag);
uint32_t recorder_stat_index(const struct recorder_ring *ring, const struct stall_wait_stat *stat);
bool recorder_stat_is_own(const struct recorder_ring *ring, const struct stall_wait_stat *stat);
void recorder_stat_count(struct stall_wait_stat *stat, uint64_t ns, uint64_t now);
/* More waits that took as long as one that was counted. */
void recorder_stat_count_alike(struct stall_wait_stat *stat, uint64_t ns, uint64_t count);

/* Of what fstat(2) says: device, number, type and permissions, size. A server of the file is not asked,
 * where the kernel knows how: it may not answer. */
bool recorder_file_status(int fd, struct stat *ret);
/* The key of the file that is waited for, and its type and permissions. */
void recorder_file_key(const struct recorder_wait *wait, struct stall_wait_key *key,
		       uint32_t *ret_mode);
/* Writes its name beside the stat. */
void recorder_file_name(struct recorder_ring *ring, struct stall_wait_stat *stat, uint64_t tag,
			const struct recorder_wait *wait, uint32_t mode);

#endif

// SPDX-License-Identifier: Apache-2.0
// What the wait programs report: records, slots, stats, losses.
#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "ebpf/waits_read.h"
#include "ebpf/waits_state.h"

int stall_bpf_waits_fd(const struct stall_bpf_waits *waits)
{
	return waits->epoll;
}

static bool hand_on(const struct stall_wait_handler *handler, const void *data, size_t size)
{
	const struct stall_wait_record *record = data;

	if (size < 2 * sizeof(uint32_t) || record->magic != STALL_BPF_MAGIC)
		return false;
	if (record->type == STALL_RECORD_FILE) {
		if (size < sizeof(struct stall_wait_file))
			return false;
		if (handler->file)
			handler->file(handler->arg, data);
		return true;
	}
	if (size < sizeof(*record) || size - sizeof(*record) < record->stack_size)
		return false;
	if (handler->wait)
		handler->wait(handler->arg, record, (const uint8_t *)(record + 1));
	return true;
}

// Ends the round: libbpf consumes this record and stops.
#define ENOUGH (-ECANCELED)

int stall_bpf_waits_take_alarm(void *arg, void *data, size_t size)
{
	struct stall_bpf_waits *waits = arg;

	waits->delivered += hand_on(waits->handler, data, size);
	return 0;
}

static int take_alarms(struct stall_bpf_waits *waits)
{
	int rc = ring_buffer__consume(waits->alarms);

	if (rc > 0 && waits->handler->alarms)
		waits->handler->alarms(waits->handler->arg);
	return rc;
}

int stall_bpf_waits_take_record(void *arg, void *data, size_t size)
{
	struct stall_bpf_waits *waits = arg;

	// Waits in flight come before waits that have ended, also before the next of these.
	int rc = take_alarms(waits);
	if (rc < 0)
		return rc;
	waits->delivered += hand_on(waits->handler, data, size);
	return waits->max && waits->delivered >= waits->max ? ENOUGH : 0;
}

struct stall_error *stall_bpf_waits_consume(struct stall_bpf_waits *waits,
					    const struct stall_wait_handler *handler, size_t max,
					    size_t *ret_count)
{
	waits->handler = handler;
	waits->delivered = 0;
	waits->max = max;
	int rc = take_alarms(waits);
	if (rc >= 0)
		rc = ring_buffer__consume(waits->ring);
	if (rc < 0 && rc != ENOUGH)
		return stall_error_os(-rc, "cannot read the BPF ring buffer");
	*ret_count = waits->delivered;
	return NULL;
}

struct stall_error *stall_bpf_waits_scan(struct stall_bpf_waits *waits)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts);

	if (waits->has_timer)
		return NULL;
	int rc = bpf_prog_test_run_opts(bpf_program__fd(waits->skeleton->progs.stall_scan), &opts);
	return rc ? stall_error_os(-rc, "cannot run the BPF program that searches for long waits")
		  : NULL;
}

/* What is mapped. */

const volatile struct stall_wait_slot *stall_bpf_waits_slots(const struct stall_bpf_waits *waits,
							     size_t *ret_count)
{
	size_t high = *(volatile __u32 *)&waits->skeleton->bss->slots_high;

	*ret_count = high < waits->slot_count ? high : waits->slot_count;
	return waits->slots;
}

const volatile struct stall_wait_stat *stall_bpf_waits_stats(const struct stall_bpf_waits *waits,
							     size_t *ret_count)
{
	*ret_count = waits->stat_count;
	return waits->stats;
}

size_t stall_bpf_waits_made_count(const struct stall_bpf_waits *waits)
{
	size_t count = *(volatile __u32 *)&waits->skeleton->bss->made_count;

	return count < waits->stat_count ? count : waits->stat_count;
}

bool stall_bpf_waits_made_stat(const struct stall_bpf_waits *waits, size_t number, size_t *ret)
{
	uint64_t index = *(volatile uint64_t *)&waits->made_stats[number];

	// 0: a program is about to write it.
	if (!index || index > waits->stat_count)
		return false;
	*ret = index - 1;
	return true;
}

static struct stall_wait_stat *find_stat(const struct stall_bpf_waits *waits,
					 const struct stall_wait_key *key)
{
	uint64_t tag = stall_wait_tag(key);

	for (uint32_t i = 0; i < STALL_STAT_PLACES; i++) {
		struct stall_wait_stat *stat = &waits->stats[(tag + i) & waits->stat_mask];

		if (stat->tag == tag)
			return stat;
	}
	return NULL;
}

bool stall_bpf_waits_find(const struct stall_bpf_waits *waits, const struct stall_wait_key *key,
			  size_t *ret)
{
	const struct stall_wait_stat *stat = find_stat(waits, key);

	if (stat)
		*ret = stat - waits->stats;
	return stat;
}

void stall_bpf_waits_set_role(struct stall_bpf_waits *waits, const struct stall_wait_key *key,
			      enum stall_wait_role role)
{
	struct stall_wait_stat *stat = find_stat(waits, key);

	if (stat)
		*(volatile __u32 *)&stat->role = role;
}

void stall_bpf_waits_announce(struct stall_bpf_waits *waits, size_t stat)
{
	if (stat < waits->stat_count)
		*(volatile __u32 *)&waits->stats[stat].announced = 1;
}

uint64_t stall_bpf_waits_take_max(struct stall_bpf_waits *waits, size_t stat)
{
	return __atomic_exchange_n(&waits->stats[stat].max_ns, 0, __ATOMIC_RELAXED);
}

static bool is_in_use(const struct stall_bpf_waits *waits, uint32_t stat)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_bpf_waits_slots(waits, &count);

	if (*(volatile __u32 *)&waits->stats[stat].marked)
		return true;
	for (size_t i = 0; i < count; i++) {
		if ((slots[i].seq & 1) && slots[i].stat == stat)
			return true;
	}
	return false;
}

bool stall_bpf_waits_retire(struct stall_bpf_waits *waits, size_t index,
			    struct stall_wait_stat *ret)
{
	struct stall_wait_stat *stat = &waits->stats[index];
	static const uint64_t grace_ns = 100000000;
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);

	if (index > waits->stat_mask || !stat->used || is_in_use(waits, index))
		return false;
	if (stat->tag != STALL_TAG_RETIRED) {
		// No program finds it any more; those that have found it finish in a moment.
		stat->retired_ns = now;
		__atomic_store_n(&stat->tag, STALL_TAG_RETIRED, __ATOMIC_SEQ_CST);
		return false;
	}
	if (now - stat->retired_ns < grace_ns)
		return false;
	*ret = *stat;
	memset(&stat->key, 0, sizeof(*stat) - offsetof(struct stall_wait_stat, key));
	stat->listed = 1;
	__atomic_store_n(&stat->tag, 0, __ATOMIC_SEQ_CST);
	return true;
}

/* Losses. */

static uint64_t missed(const struct bpf_program *program)
{
	struct bpf_prog_info info = {};
	__u32 size = sizeof(info);
	int fd = bpf_program__fd(program);

	if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &size))
		return 0;
	return info.recursion_misses;
}

void stall_bpf_waits_lost(struct stall_bpf_waits *waits, uint64_t ret[STALL_LOST_CAUSES])
{
	struct bpf_program *program;

	if (!waits->missed_is_known) {
		waits->missed = 0;
		bpf_object__for_each_program(program, waits->skeleton->obj) waits->missed +=
			missed(program);
		waits->missed_is_known = !waits->attached;
	}
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		ret[i] = *(volatile __u64 *)&waits->skeleton->bss->lost[i];
	ret[STALL_LOST_MISSED] += waits->missed;
}

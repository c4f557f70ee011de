// SPDX-License-Identifier: Apache-2.0
// A lock that threads storm leaves room for the records of a file that is synced now and then.
#include "waits_watcher.h"

#define RECORDS_PER_SECOND 100
#define SYNCS 3 // fewer than the share of one of the few that have records here

static uint32_t count_syncs(const struct watcher *watcher)
{
	uint32_t count = 0;

	for (size_t i = 0; i < watcher->record_count; i++)
		count += watcher->records[i].record.type == STALL_RECORD_END &&
			 watcher->records[i].record.key.kind == STALL_WAIT_FSYNC;
	return count;
}

// The storm is on: more waits than may be told of are over.
static bool await_limit(struct watcher *watcher)
{
	uint64_t end = stall_clock_ns(CLOCK_MONOTONIC) + 60000 * MS;

	while (lost(watcher, STALL_LOST_RATE) < RECORDS_PER_SECOND) {
		if (stall_clock_ns(CLOCK_MONOTONIC) > end)
			return false;
		watcher_take(watcher);
		poll(NULL, 0, 5);
	}
	return true;
}

int main(void)
{
	struct stall_bpf_waits_options options;
	static struct watcher watcher;
	struct actor stormer, syncer;
	int skip = require_waits();

	if (skip)
		return skip;
	CHECK(actor_start(&stormer, "8", "0") && actor_start(&syncer, "1", "0"));
	set_thresholds(&options, 1);
	options.records_per_second = RECORDS_PER_SECOND;
	CHECK_OK(stall_bpf_waits_create(&options, &watcher.waits));
	CHECK_OK(stall_bpf_waits_add(watcher.waits, stormer.pid));
	CHECK_OK(stall_bpf_waits_add(watcher.waits, syncer.pid));
	// What a futex word is, its reader says: as long as nobody does, all of them are one flow.
	actor_send(&stormer, "mutex 20000 1 8");
	CHECK(await_limit(&watcher));
	for (int i = 0; i < SYNCS; i++) {
		json_decref(actor_do(&syncer, "fsync 1"));
		watcher_take(&watcher);
	}
	watcher_take(&watcher);
	uint64_t limited = lost(&watcher, STALL_LOST_RATE);
	printf("told of %u of %d syncs; %zu records; %llu above the limit\n", count_syncs(&watcher),
	       SYNCS, watcher.record_count, (unsigned long long)limited);
	CHECK_INT(count_syncs(&watcher), SYNCS);
	CHECK_INT(lost(&watcher, STALL_LOST_RING_FULL), 0);
	stall_bpf_waits_destroy(watcher.waits);
	actor_stop(&stormer);
	actor_stop(&syncer);
	return check_done();
}

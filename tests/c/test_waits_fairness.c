// SPDX-License-Identifier: Apache-2.0
// A lock that threads storm leaves room for the records of a file that is synced at intervals.
#include "ebpf/waits_read.h"
#include "waits_watcher.h"

#define RECORDS_PER_SECOND 100
#define SYNCS 3 // fewer than the share of one of the few that have records here

static uint32_t reported; // of syncs

static void count_sync(void *arg, const struct stall_wait_record *record, const uint8_t *stack)
{
	reported += record->type == STALL_RECORD_END && record->key.kind == STALL_WAIT_FSYNC;
}

static void take(struct stall_bpf_waits *waits)
{
	const struct stall_wait_handler handler = {.wait = count_sync};
	size_t count;

	CHECK_OK(stall_bpf_waits_consume(waits, &handler, 0, &count));
}

static uint64_t limited(struct stall_bpf_waits *waits)
{
	uint64_t losses[STALL_LOST_CAUSES];

	stall_bpf_waits_lost(waits, losses);
	CHECK_INT(losses[STALL_LOST_RING_FULL], 0);
	return losses[STALL_LOST_RATE];
}

// The storm is on: more waits than may be reported are over.
static bool await_limit(struct stall_bpf_waits *waits)
{
	uint64_t end = stall_clock_ns(CLOCK_MONOTONIC) + PATIENCE_NS;

	while (limited(waits) < RECORDS_PER_SECOND) {
		if (stall_clock_ns(CLOCK_MONOTONIC) > end)
			return false;
		take(waits);
		poll(NULL, 0, 5);
	}
	return true;
}

// A disk may take long for it, and the storm continues meanwhile.
static void make_sync(struct actor *syncer, struct stall_bpf_waits *waits)
{
	struct pollfd answers = {.fd = fileno(syncer->target.answers), .events = POLLIN};

	dprintf(syncer->target.stdin_fd, "fsync 1\n");
	do {
		take(waits);
	} while (poll(&answers, 1, 5) == 0);
	json_decref(actor_answer(syncer));
}

int main(void)
{
	struct stall_bpf_waits_options options = options_of(ALL_KINDS, 1);
	struct stall_bpf_waits *waits;
	struct actor stormer, syncer;
	int skip = require_waits();

	if (skip)
		return skip;
	CHECK(actor_start(&stormer, "8", "0") && actor_start(&syncer, "1", "0"));
	options.records_per_second = RECORDS_PER_SECOND;
	CHECK_OK(stall_bpf_waits_create(&options, &waits));
	CHECK_OK(stall_bpf_waits_add(waits, stormer.target.pid));
	CHECK_OK(stall_bpf_waits_add(waits, syncer.target.pid));
	// What a futex word is, its reader says: as long as nobody does, all of them are one flow.
	dprintf(stormer.target.stdin_fd, "mutex 1000000 1 8\n");
	CHECK(await_limit(waits));
	for (int i = 0; i < SYNCS; i++)
		make_sync(&syncer, waits);
	take(waits);
	printf("reported %u of %d syncs; %llu above the limit\n", reported, SYNCS,
	       (unsigned long long)limited(waits));
	CHECK_INT(reported, SYNCS);
	stall_bpf_waits_destroy(waits);
	actor_stop(&stormer);
	actor_stop(&syncer);
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// Which waits take a capture: those over the threshold of their kind, convoys, one in an interval.
#include "serve/trigger_rules.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define MS UINT64_C(1000000)

static struct stall_triggers make(uint64_t mutex_ms, uint32_t convoy, uint64_t interval_ms)
{
	struct stall_trigger_rules rules;
	struct stall_triggers triggers = {};

	stall_trigger_rules_init(&rules);
	CHECK(!stall_trigger_rules_any(&rules));
	stall_trigger_rules_set(&rules, 1u << STALL_WATCH_MUTEX, mutex_ms * MS);
	rules.convoy = convoy;
	rules.interval_ns = interval_ms * MS;
	CHECK(stall_trigger_rules_any(&rules) == (mutex_ms || convoy));
	CHECK_OK(stall_triggers_init(&triggers, &rules));
	return triggers;
}

// A mutex wait since `start_ms` whose record was received after 10 ms, its threshold.
static struct stall_trigger_wait wait_of(uint64_t slot, uint64_t start_ms)
{
	return (struct stall_trigger_wait){
		.wait = slot << 32 | 1,
		.kind = STALL_WATCH_MUTEX,
		.pid = 7,
		.tid = 70 + slot,
		.address = 0x5000,
		.start_ns = start_ms * MS,
		.received_ns = (start_ms + 11) * MS,
		.threshold_ns = 10 * MS,
		.waiters = 2,
	};
}

static void test_threshold(void)
{
	struct stall_triggers triggers = make(10, 0, 100);
	struct stall_trigger_wait wait = wait_of(1, 1000);
	struct stall_trigger trigger;

	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1011 * MS, &trigger),
		  STALL_TRIGGER_NOW);
	CHECK_STRING(trigger.reason, "threshold");
	CHECK_STRING(trigger.kind, "mutex");
	CHECK_INT(trigger.tid, 71);
	CHECK_INT(trigger.length_ns, 11 * MS);
	CHECK_INT(trigger.crossed_ns, 1010 * MS);
	CHECK_INT(trigger.received_ns, 1011 * MS);
	// The event of the same wait, and the same thread's next wait.
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1012 * MS, &trigger),
		  STALL_TRIGGER_NEVER);
	wait.wait += 2;
	wait.start_ns = 1050 * MS;
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1061 * MS, &trigger),
		  STALL_TRIGGER_SUPPRESSED);
	wait = wait_of(2, 1040);
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1110 * MS, &trigger),
		  STALL_TRIGGER_SUPPRESSED);
	wait = wait_of(3, 1040);
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1111 * MS, &trigger),
		  STALL_TRIGGER_NOW);
	CHECK_INT(trigger.suppressed, 2);
	CHECK_INT(triggers.suppressed, 0);
	stall_triggers_deinit(&triggers);
}

static void test_other_kinds(void)
{
	struct stall_triggers triggers = make(10, 0, 0);
	struct stall_trigger_wait wait = wait_of(1, 1000);
	struct stall_trigger trigger;

	wait.kind = STALL_WATCH_FSYNC;
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 9000 * MS, &trigger),
		  STALL_TRIGGER_NEVER);
	// Threads that wait for work, even where every kind is asked for, and many of them.
	stall_triggers_set(&triggers, stall_watch_kinds_parse("all"), MS);
	triggers.rules.convoy = 2;
	wait.kind = STALL_WATCH_COND;
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 9000 * MS, &trigger),
		  STALL_TRIGGER_NEVER);
	wait.kind = STALL_WATCH_FSYNC;
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 9000 * MS, &trigger),
		  STALL_TRIGGER_NOW);
	stall_triggers_deinit(&triggers);
}

static void test_convoy(void)
{
	struct stall_triggers triggers = make(0, 5, 0);
	struct stall_trigger_wait wait = wait_of(1, 1000);
	struct stall_trigger trigger;

	wait.waiters = 4;
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1011 * MS, &trigger),
		  STALL_TRIGGER_NEVER);
	wait = wait_of(2, 1001);
	wait.waiters = 5;
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1012 * MS, &trigger),
		  STALL_TRIGGER_NOW);
	CHECK_STRING(trigger.reason, "convoy");
	CHECK_INT(trigger.threshold_ns, 10 * MS);
	CHECK_INT(trigger.crossed_ns, 1011 * MS);
	stall_triggers_deinit(&triggers);
}

static void test_later(void)
{
	struct stall_triggers triggers = make(200, 0, 0);
	struct stall_trigger_wait wait = wait_of(1, 1000), due;
	struct stall_trigger trigger;
	char *name;

	CHECK(stall_triggers_next_ns(&triggers) == UINT64_MAX);
	CHECK_INT(stall_triggers_consider(&triggers, &wait, 1011 * MS, &trigger),
		  STALL_TRIGGER_LATER);
	wait.name = "LOCK_open";
	CHECK_OK(stall_triggers_keep(&triggers, &wait));
	wait = wait_of(2, 900);
	CHECK_OK(stall_triggers_keep(&triggers, &wait));
	CHECK_INT(stall_triggers_next_ns(&triggers), 1100 * MS);
	CHECK(!stall_triggers_take_due(&triggers, 1099 * MS, &due, &name));
	CHECK(stall_triggers_take_due(&triggers, 1100 * MS, &due, &name));
	CHECK_INT(due.tid, 72);
	CHECK(!name);
	CHECK_INT(stall_triggers_next_ns(&triggers), 1200 * MS);
	CHECK(stall_triggers_take_due(&triggers, 1201 * MS, &due, &name));
	CHECK_STRING(name, "LOCK_open");
	CHECK_INT(stall_triggers_consider(&triggers, &due, 1201 * MS, &trigger), STALL_TRIGGER_NOW);
	CHECK_INT(trigger.crossed_ns, 1200 * MS);
	CHECK_INT(trigger.received_ns, 1201 * MS);
	CHECK_INT(trigger.length_ns, 201 * MS);
	memset(name, 'x', strlen(name)); // a capture is written long after the wait is over
	free(name);
	CHECK_STRING(trigger.name, "LOCK_open");
	// A threshold that is taken back takes back what waited for it.
	CHECK_OK(stall_triggers_keep(&triggers, &wait));
	stall_triggers_set(&triggers, stall_watch_kinds_parse("all"), 0);
	CHECK(stall_triggers_next_ns(&triggers) == UINT64_MAX);
	CHECK_INT(triggers.pending_count, 0);
	stall_triggers_deinit(&triggers);
}

// Waits that are over leave no room taken: a server may have thousands in a second.
static void test_one_of_each_thread(void)
{
	struct stall_triggers triggers = make(10000, 0, 0);
	struct stall_trigger_wait wait = wait_of(1, 1000), due;
	char *name;

	wait.name = "LOCK_open";
	for (int i = 0; i < 20000; i++) {
		CHECK_OK(stall_triggers_keep(&triggers, &wait));
		wait.wait += 2;
		wait.start_ns += MS;
	}
	struct stall_trigger_wait other = wait_of(2, 500);
	CHECK_OK(stall_triggers_keep(&triggers, &other));
	CHECK_INT(triggers.pending_count, 2);
	CHECK_INT(triggers.suppressed, 0);
	// The last of one thread, and the one of the other.
	CHECK(stall_triggers_take_due(&triggers, 10500 * MS, &due, &name));
	CHECK_INT(due.tid, 72);
	CHECK(!stall_triggers_take_due(&triggers, 20000 * MS, &due, &name));
	CHECK(stall_triggers_take_due(&triggers, wait.start_ns + 9999 * MS, &due, &name));
	CHECK_INT(due.wait, wait.wait - 2);
	free(name);
	CHECK_INT(triggers.pending_count, 0);
	stall_triggers_deinit(&triggers);
}

// What is kept has a limit, and what is beyond it is counted.
static void test_limit(void)
{
	struct stall_triggers triggers = make(200, 0, 0);
	struct stall_trigger_wait due;
	size_t taken = 0;
	char *name;

	for (uint64_t i = 0; i < 20000; i++) {
		struct stall_trigger_wait wait = wait_of(i, 1000);
		CHECK_OK(stall_triggers_keep(&triggers, &wait));
	}
	CHECK_INT(triggers.pending_count + triggers.suppressed, 20000);
	CHECK(triggers.suppressed > 0);
	while (stall_triggers_take_due(&triggers, 1200 * MS, &due, &name))
		taken++;
	CHECK_INT(taken + triggers.suppressed, 20000);
	stall_triggers_deinit(&triggers);
}

int main(void)
{
	test_threshold();
	test_other_kinds();
	test_convoy();
	test_later();
	test_one_of_each_thread();
	test_limit();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// When a wait source rests: with a clock of the test's own.
#include "check.h"
#include "sources/resting.h"

#define MS UINT64_C(1000000)
#define S (1000 * MS)
#define THRESHOLD (500 * MS)

static struct stall_resting make(uint32_t percent, uint64_t threshold_ns)
{
	struct stall_resting resting;

	stall_resting_init(&resting, percent, threshold_ns);
	CHECK(!resting.armed);
	return resting;
}

static void test_interval(void)
{
	static const struct {
		uint32_t percent;
		uint64_t threshold_ns, interval_ns;
	} cases[] = {
		{STALL_RESTING_PERCENT, 100 * MS, 68 * MS},
		{STALL_RESTING_PERCENT, 500 * MS, 340 * MS},
		{STALL_RESTING_PERCENT, 60 * S, 340 * MS},
		{STALL_RESTING_PERCENT, 10 * MS, 20 * MS},
		{STALL_RESTING_PERCENT, 0, 20 * MS},
		{STALL_RESTING_PERCENT, STALL_RESTING_NEVER, 340 * MS},
		{STALL_RESTING_PERCENT_SAMPLED, 500 * MS, 100 * MS},
		{STALL_RESTING_PERCENT_SAMPLED, 50 * MS, 20 * MS},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct stall_resting resting = make(cases[i].percent, cases[i].threshold_ns);
		CHECK_INT(stall_resting_interval_ns(&resting), cases[i].interval_ns);
	}
	struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);
	stall_resting_set_threshold(&resting, 100 * MS);
	CHECK_INT(stall_resting_interval_ns(&resting), 68 * MS);
}

static void test_shortest(void)
{
	uint64_t threshold_ns[STALL_WAIT_KINDS];

	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		threshold_ns[i] = (uint64_t)(i + 1) * S;
	CHECK_INT(stall_resting_shortest(threshold_ns, ~0u), S);
	CHECK_INT(stall_resting_shortest(threshold_ns, 1u << 2 | 1u << 4), 3 * S);
	CHECK(stall_resting_shortest(threshold_ns, 0) == STALL_RESTING_NEVER);
}

// 20,000 threads: the interval grows until the passes take 0.4 % of a core.
static void test_budget(void)
{
	struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);

	stall_resting_passed(&resting, 400, 440000);
	CHECK_INT(stall_resting_interval_ns(&resting), 340 * MS);
	for (int i = 0; i < 50; i++)
		stall_resting_passed(&resting, 20000, 22 * MS);
	uint64_t interval_ns = stall_resting_interval_ns(&resting);
	CHECK(interval_ns > 5400 * MS && interval_ns <= 5500 * MS);
	CHECK_INT(stall_resting_affordable_ns(&resting), interval_ns);
	struct stall_wait_rest rest;
	stall_resting_report(&resting, &rest);
	CHECK_INT(rest.threads, 20000);
	CHECK_INT(rest.interval_ns, interval_ns);
	// One slow pass changes it by a quarter at most, and it recovers.
	for (int i = 0; i < 100; i++)
		stall_resting_passed(&resting, 400, 440000);
	stall_resting_passed(&resting, 400, 4 * 1200000);
	CHECK(stall_resting_interval_ns(&resting) < 400 * MS);
	for (int i = 0; i < 10; i++)
		stall_resting_passed(&resting, 400, 440000);
	CHECK_INT(stall_resting_interval_ns(&resting), 340 * MS);
}

static void test_is_long(void)
{
	CHECK(!stall_resting_is_long(249 * MS, THRESHOLD));
	CHECK(stall_resting_is_long(250 * MS, THRESHOLD));
	// The second pass of a source that knows how long threads sleep finds it.
	const struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);
	CHECK(stall_resting_is_long(stall_resting_interval_ns(&resting), THRESHOLD));
}

// What a source does, at a moment.
static bool step(struct stall_resting *resting, uint64_t now_ns, bool is_long, bool refuse)
{
	if (is_long)
		stall_resting_saw_long_wait(resting, now_ns);
	bool wanted = stall_resting_wants_armed(resting, now_ns);
	if (wanted && !resting->armed) {
		if (refuse)
			stall_resting_refused(resting, now_ns, "no memory");
		else
			stall_resting_armed(resting, now_ns);
	} else if (!wanted && resting->armed) {
		stall_resting_disarmed(resting);
	}
	return resting->armed;
}

static uint64_t alerts(const struct stall_resting *resting)
{
	struct stall_wait_rest rest;

	stall_resting_report(resting, &rest);
	return rest.alerts;
}

// Each long wait after a second without one, armed or not, and whether arming is refused or not.
static void test_alerts(void)
{
	for (int refuse = 0; refuse < 2; refuse++) {
		struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);
		uint64_t now_ns = 1000 * S;

		step(&resting, now_ns, false, refuse);
		CHECK_INT(alerts(&resting), 0);
		for (int i = 0; i < 20; i++)
			step(&resting, now_ns + i * 340 * MS, true, refuse);
		CHECK_INT(alerts(&resting), 1);
		now_ns += 19 * 340 * MS;
		step(&resting, now_ns + S, true, refuse);
		CHECK_INT(alerts(&resting), 2);
		step(&resting, now_ns + 30 * S, true, refuse);
		CHECK_INT(alerts(&resting), 3);
	}
}

static void test_arming(void)
{
	struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);
	uint64_t now_ns = 1000 * S;

	CHECK(!step(&resting, now_ns, false, false));
	CHECK(stall_resting_due_ns(&resting) == STALL_RESTING_NEVER);
	// At once, and until 10 s after the last long wait.
	CHECK(step(&resting, now_ns, true, false));
	CHECK(step(&resting, now_ns + 9 * S, true, false));
	CHECK_INT(stall_resting_due_ns(&resting), now_ns + 19 * S);
	CHECK(step(&resting, now_ns + 19 * S - 1, false, false));
	CHECK(!step(&resting, now_ns + 19 * S, false, false));
	CHECK(stall_resting_due_ns(&resting) == STALL_RESTING_NEVER);
	// The next one after the quiet, at once too.
	CHECK(step(&resting, now_ns + 19 * S + 1, true, false));
	CHECK_INT(resting.arms, 2);
}

// Waits that come and go for an hour.
static void test_storm(void)
{
	static const uint64_t periods_ns[] = {100 * MS,	  3 * S,  9900 * MS, 10 * S,
					      10100 * MS, 11 * S, 60 * S};

	for (size_t i = 0; i < sizeof(periods_ns) / sizeof(periods_ns[0]); i++) {
		struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);
		uint64_t next_ns = 0, last_ns = 0, begin_ns = 5 * S;

		for (uint64_t now_ns = begin_ns; now_ns < begin_ns + 3600 * S; now_ns += 100 * MS) {
			bool is_long = now_ns >= next_ns, was = resting.armed;
			if (is_long)
				next_ns = now_ns + periods_ns[i];
			step(&resting, now_ns, is_long, false);
			if (was || !resting.armed)
				continue;
			CHECK(!last_ns || now_ns - last_ns >= 10 * S);
			last_ns = now_ns;
		}
		CHECK(resting.arms <= 360);
		CHECK(periods_ns[i] >= 10 * S || resting.arms == 1);
	}
}

// Programs that are lost while armed: not armed again before 10 s have passed since the last time.
static void test_lost(void)
{
	struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);

	CHECK(step(&resting, 20 * S, true, false));
	stall_resting_disarmed(&resting);
	CHECK(!step(&resting, 21 * S, true, false));
	CHECK_INT(stall_resting_due_ns(&resting), 30 * S);
	CHECK(!step(&resting, 30 * S - 1, true, false));
	CHECK(step(&resting, 30 * S, false, false)); // that wait is less than 10 s ago
}

// A moment that has passed must not be due again and again: the source would not sleep.
static void test_late(void)
{
	struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);

	CHECK(step(&resting, 20 * S, true, false));
	CHECK(!step(&resting, 31 * S, false, false));
	CHECK(stall_resting_due_ns(&resting) == STALL_RESTING_NEVER);
	// It can be armed at 42 s, and its wait is of no more use at 43 s.
	CHECK(step(&resting, 32 * S, true, false));
	stall_resting_disarmed(&resting);
	CHECK(!step(&resting, 33 * S, true, false));
	CHECK_INT(stall_resting_due_ns(&resting), 42 * S);
	CHECK(!step(&resting, 44 * S, false, false));
	CHECK(stall_resting_due_ns(&resting) == STALL_RESTING_NEVER);
	CHECK(step(&resting, 45 * S, true, false));
}

static void test_refusals(void)
{
	struct stall_resting resting = make(STALL_RESTING_PERCENT, THRESHOLD);
	static const uint64_t after_s[] = {0, 1, 2, 4, 8, 16, 32, 60, 60};
	uint64_t now_ns = 100 * S;
	struct stall_wait_rest rest;

	for (size_t i = 0; i < sizeof(after_s) / sizeof(after_s[0]); i++) {
		if (after_s[i])
			CHECK(!stall_resting_wants_armed(&resting, now_ns + after_s[i] * S));
		stall_resting_saw_long_wait(&resting, now_ns + after_s[i] * S - 1);
		if (after_s[i])
			CHECK(!stall_resting_wants_armed(&resting, now_ns + after_s[i] * S - 1));
		now_ns += after_s[i] * S;
		CHECK(!step(&resting, now_ns, true, true));
		CHECK_INT(resting.refused, i + 1);
	}
	stall_resting_report(&resting, &rest);
	CHECK(rest.resting && rest.refused == 9 && !rest.arms);
	CHECK_STRING(rest.why, "no memory");
	// A wait that was over by the time to try again is none.
	CHECK(!step(&resting, now_ns + 3600 * S, false, false));
	CHECK(step(&resting, now_ns + 3601 * S, true, false));
	stall_resting_report(&resting, &rest);
	CHECK(!rest.resting && rest.arms == 1 && rest.refused == 9 && !rest.why);
	// From the start again.
	CHECK(!step(&resting, now_ns + 3700 * S, false, false));
	CHECK(!step(&resting, now_ns + 3701 * S, true, true));
	CHECK(!step(&resting, now_ns + 3702 * S - 1, true, true));
	CHECK(step(&resting, now_ns + 3702 * S, true, false));
}

int main(void)
{
	test_interval();
	test_shortest();
	test_budget();
	test_is_long();
	test_alerts();
	test_arming();
	test_storm();
	test_lost();
	test_late();
	test_refusals();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
#include "sources/resting.h"

#include <stdio.h>

// Between two passes, as far as their cost allows. Each sample of the history is a pass as well, once
// a second: so there are three in a second.
#define LONGEST_NS UINT64_C(340000000)
#define SHORTEST_NS UINT64_C(20000000)
#define PER_CORE 250 // passes take at most 1 / 250 of a core, 0.4 %
#define RETRY_NS UINT64_C(1000000000)
#define MAX_RETRY_NS UINT64_C(60000000000)

void stall_resting_init(struct stall_resting *resting, uint32_t percent, uint64_t threshold_ns)
{
	*resting = (struct stall_resting){
		.percent = percent,
		.threshold_ns = threshold_ns,
		.retry_after_ns = RETRY_NS,
	};
}

void stall_resting_set_threshold(struct stall_resting *resting, uint64_t threshold_ns)
{
	resting->threshold_ns = threshold_ns;
}

uint64_t stall_resting_shortest(const uint64_t threshold_ns[STALL_WAIT_KINDS], uint32_t kinds)
{
	uint64_t shortest_ns = STALL_RESTING_NEVER;

	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if (kinds >> i & 1 && threshold_ns[i] < shortest_ns)
			shortest_ns = threshold_ns[i];
	return shortest_ns;
}

// One pass that was slow by chance must not delay the next ones for long.
void stall_resting_passed(struct stall_resting *resting, uint64_t threads, uint64_t cost_ns)
{
	resting->threads = threads;
	resting->cost_ns = resting->cost_ns ? (3 * resting->cost_ns + cost_ns) / 4 : cost_ns;
}

uint64_t stall_resting_affordable_ns(const struct stall_resting *resting)
{
	return resting->cost_ns * PER_CORE;
}

uint64_t stall_resting_interval_ns(const struct stall_resting *resting)
{
	uint64_t interval_ns = resting->threshold_ns / 100 * resting->percent;
	const uint64_t affordable_ns = stall_resting_affordable_ns(resting);

	if (interval_ns > LONGEST_NS)
		interval_ns = LONGEST_NS;
	if (interval_ns < SHORTEST_NS)
		interval_ns = SHORTEST_NS;
	return interval_ns > affordable_ns ? interval_ns : affordable_ns;
}

void stall_resting_saw_long_wait(struct stall_resting *resting, uint64_t now_ns)
{
	if (!resting->long_ns || now_ns >= resting->long_ns + STALL_RESTING_ALERT_NS)
		resting->alerts++;
	resting->is_long = true;
	resting->long_ns = now_ns;
}

static bool is_quiet(const struct stall_resting *resting, uint64_t now_ns)
{
	return !resting->is_long || now_ns >= resting->long_ns + STALL_RESTING_QUIET_NS;
}

bool stall_resting_wants_armed(struct stall_resting *resting, uint64_t now_ns)
{
	if (is_quiet(resting, now_ns)) {
		// Or it would be due at a moment that has passed, and never sleep.
		resting->is_long = false;
		return false;
	}
	if (resting->armed)
		return true;
	return now_ns >= resting->retry_ns &&
	       (!resting->was_armed || now_ns >= resting->armed_ns + STALL_RESTING_QUIET_NS);
}

uint64_t stall_resting_due_ns(const struct stall_resting *resting)
{
	if (!resting->is_long)
		return STALL_RESTING_NEVER;
	if (resting->armed)
		return resting->long_ns + STALL_RESTING_QUIET_NS;
	uint64_t due_ns = resting->retry_ns;
	if (resting->was_armed && resting->armed_ns + STALL_RESTING_QUIET_NS > due_ns)
		due_ns = resting->armed_ns + STALL_RESTING_QUIET_NS;
	return is_quiet(resting, due_ns) ? STALL_RESTING_NEVER : due_ns;
}

void stall_resting_armed(struct stall_resting *resting, uint64_t now_ns)
{
	resting->armed = resting->was_armed = true;
	resting->armed_ns = now_ns;
	resting->retry_ns = 0;
	resting->retry_after_ns = RETRY_NS;
	resting->why[0] = '\0';
	resting->arms++;
}

// The wait that was long may be over when the time to try again comes: another one is needed.
void stall_resting_refused(struct stall_resting *resting, uint64_t now_ns, const char *why)
{
	resting->is_long = false;
	resting->refused++;
	resting->retry_ns = now_ns + resting->retry_after_ns;
	resting->retry_after_ns *= 2;
	if (resting->retry_after_ns > MAX_RETRY_NS)
		resting->retry_after_ns = MAX_RETRY_NS;
	snprintf(resting->why, sizeof(resting->why), "%s", why);
}

void stall_resting_disarmed(struct stall_resting *resting)
{
	resting->armed = false;
}

void stall_resting_report(const struct stall_resting *resting, struct stall_wait_rest *ret)
{
	*ret = (struct stall_wait_rest){
		.resting = !resting->armed,
		.interval_ns = stall_resting_interval_ns(resting),
		.threads = resting->threads,
		.arms = resting->arms,
		.refused = resting->refused,
		.alerts = resting->alerts,
		.why = resting->why[0] ? resting->why : NULL,
	};
}

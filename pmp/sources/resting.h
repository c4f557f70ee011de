// SPDX-License-Identifier: Apache-2.0
// When a wait source rests, and how often it reads the threads while it does. At rest it costs the
// processes nothing: it only reads what their threads do from time to time, in a pass, and is armed
// once a wait is long. It has no clock: times are those of the caller, CLOCK_MONOTONIC.
//
// After each pass: stall_resting_passed(), stall_resting_saw_long_wait() where a wait that is not
// idle is long, then stall_resting_wants_armed(). Where that differs from `armed`, arm or disarm,
// and call stall_resting_armed(), _refused() or _disarmed(). While armed, the same for waits that
// are found long by other means; stall_resting_due_ns() says when to ask again without one.
#ifndef STALL_RESTING_H
#define STALL_RESTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "waits/wait_source.h"

#define STALL_RESTING_QUIET_NS UINT64_C(10000000000) // without a long wait, until it rests again
#define STALL_RESTING_ALERT_NS UINT64_C(1000000000)  // without a long wait: the next one is news
#define STALL_RESTING_NEVER UINT64_MAX

// Of the shortest threshold, between two passes at rest. A source that sees how long a thread has
// been asleep finds a long wait in its second pass. One that does not knows its start to within an
// interval.
#define STALL_RESTING_PERCENT 68
#define STALL_RESTING_PERCENT_SAMPLED 20

struct stall_resting {
	bool armed;
	// The rest is private.
	uint32_t percent;
	bool was_armed, is_long;
	uint64_t threshold_ns, cost_ns, threads;
	uint64_t long_ns, armed_ns, retry_ns, retry_after_ns;
	uint64_t arms, refused, alerts;
	char why[160];
};

// The threshold: the shortest of the kinds that are watched (stall_resting_shortest).
void stall_resting_init(struct stall_resting *resting, uint32_t percent, uint64_t threshold_ns);
// From now on. Without a kind: STALL_RESTING_NEVER.
void stall_resting_set_threshold(struct stall_resting *resting, uint64_t threshold_ns);
// Of these kinds, a bit of each enum stall_wait_kind.
uint64_t stall_resting_shortest(const uint64_t threshold_ns[STALL_WAIT_KINDS], uint32_t kinds);

// A pass at rest has ended. `cost_ns`: its CPU time.
void stall_resting_passed(struct stall_resting *resting, uint64_t threads, uint64_t cost_ns);
// Between the starts of two passes at rest: as the threshold demands, and longer where the passes
// would take more than 0.4 % of a core.
uint64_t stall_resting_interval_ns(const struct stall_resting *resting);
// The least of that which the budget of 0.4 % allows.
uint64_t stall_resting_affordable_ns(const struct stall_resting *resting);

// A wait of this length is one for which the source is armed: it has passed half of its threshold.
// That of an idle kind never is.
static inline bool stall_resting_is_long(uint64_t length_ns, uint64_t threshold_ns)
{
	return length_ns >= threshold_ns / 2;
}

void stall_resting_saw_long_wait(struct stall_resting *resting, uint64_t now_ns);
// The first long wait after quiet arms at once. It rests again after 10 s without one, is armed at
// most once in 10 s, and tries again after a refusal while there are long waits: after 1 s, twice
// as long each time, at most 60 s.
bool stall_resting_wants_armed(struct stall_resting *resting, uint64_t now_ns);
// When the answer to that can change though no long wait is seen; STALL_RESTING_NEVER: not.
uint64_t stall_resting_due_ns(const struct stall_resting *resting);

void stall_resting_armed(struct stall_resting *resting, uint64_t now_ns);
// `why` is copied.
void stall_resting_refused(struct stall_resting *resting, uint64_t now_ns, const char *why);
void stall_resting_disarmed(struct stall_resting *resting);

// `why` of it lives as long as `resting`, until the next refusal.
void stall_resting_report(const struct stall_resting *resting, struct stall_wait_rest *ret);

#endif

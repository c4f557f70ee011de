// SPDX-License-Identifier: Apache-2.0
#include "base/pace.h"

#include <limits.h>

void stall_pace_init(struct stall_pace *pace, uint64_t interval_ns, uint64_t duration_ns)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	*pace = (struct stall_pace){
		.interval_ns = interval_ns,
		.next_ns = interval_ns ? now_ns + interval_ns : UINT64_MAX,
		.end_ns = duration_ns ? now_ns + duration_ns : UINT64_MAX,
	};
}

bool stall_pace_ends(const struct stall_pace *pace)
{
	return pace->end_ns != UINT64_MAX;
}

bool stall_pace_is_over(const struct stall_pace *pace)
{
	return stall_clock_ns(CLOCK_MONOTONIC) >= pace->end_ns;
}

bool stall_pace_take(struct stall_pace *pace)
{
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (now_ns < pace->next_ns)
		return false;
	pace->next_ns += pace->interval_ns;
	if (pace->next_ns <= now_ns)
		pace->next_ns = now_ns + pace->interval_ns;
	return true;
}

int stall_pace_timeout_ms(const struct stall_pace *pace)
{
	uint64_t until_ns = pace->next_ns < pace->end_ns ? pace->next_ns : pace->end_ns;
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (until_ns == UINT64_MAX)
		return -1;
	if (until_ns <= now_ns)
		return 0;
	uint64_t ms = (until_ns - now_ns) / 1000000 + 1;
	return ms < INT_MAX ? (int)ms : INT_MAX;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/pace.h"

#include <poll.h>

#include "check.h"

#define MS UINT64_C(1000000)

static void test_never(void)
{
	struct stall_pace pace;

	stall_pace_init(&pace, 0, 0);
	CHECK(!stall_pace_ends(&pace));
	CHECK(!stall_pace_is_over(&pace));
	CHECK(!stall_pace_take(&pace));
	CHECK_INT(stall_pace_timeout_ms(&pace), -1);
}

static void test_lines_that_were_missed_are_not_due(void)
{
	struct stall_pace pace;

	stall_pace_init(&pace, 20 * MS, 0);
	uint64_t first_ns = pace.next_ns;
	poll(NULL, 0, 100);
	CHECK_INT(stall_pace_timeout_ms(&pace), 0);
	CHECK(stall_pace_take(&pace));
	CHECK(pace.next_ns >= first_ns + 80 * MS);
	CHECK(!stall_pace_ends(&pace));
}

static void test_the_end_comes_first(void)
{
	struct stall_pace pace;

	stall_pace_init(&pace, 3600 * 1000 * MS, 50 * MS);
	CHECK(stall_pace_ends(&pace));
	CHECK(stall_pace_timeout_ms(&pace) <= 51);
	while (!stall_pace_is_over(&pace))
		poll(NULL, 0, stall_pace_timeout_ms(&pace));
	CHECK(stall_clock_ns(CLOCK_MONOTONIC) >= pace.end_ns);
	CHECK(!stall_pace_take(&pace));
	// A far end is as far as poll(2) can wait.
	stall_pace_init(&pace, 0, UINT64_C(1) << 62);
	CHECK_INT(stall_pace_timeout_ms(&pace), INT32_MAX);
}

int main(void)
{
	test_never();
	test_lines_that_were_missed_are_not_due();
	test_the_end_comes_first();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// Who asks for little of a budget gets it, however much others ask for; and the budget is kept.
#include "ebpf/fair_share.h"

#include <stdint.h>

#include "check.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define BUDGET 1000 // a second
#define COST (SECOND / BUDGET)
#define START (100 * SECOND)
#define ROUNDING 10 // what is for who comes first begins to count with the first that takes of it

// How many of `each` that a flow asks for each millisecond are granted in so many seconds.
static uint64_t flood(struct stall_fair_share *share, uint32_t flow, uint32_t each,
		      uint32_t seconds, bool is_scarce)
{
	uint64_t granted = 0;

	for (uint64_t ms = 0; ms < seconds * UINT64_C(1000); ms++)
		for (uint32_t i = 0; i < each; i++)
			granted += stall_fair_take(share, flow, COST, START + ms * MS, is_scarce);
	return granted;
}

static void test_one_alone_has_all(void)
{
	struct stall_fair_share share = {};
	uint64_t granted = flood(&share, 7, 50, 10, false);

	CHECK(granted >= 11 * BUDGET - ROUNDING &&
	      granted <= 11 * BUDGET + 2); // with what it may at once
}

static void test_a_burst_of_one_alone(void)
{
	struct stall_fair_share share = {};
	uint64_t granted = 0;

	for (int i = 0; i < 2 * BUDGET; i++)
		granted += stall_fair_take(&share, 3, COST, START, false);
	CHECK(granted >= BUDGET && granted <= BUDGET + 2);
}

// Five flood, one asks ten times a second.
static void test_who_asks_for_little_gets_it(void)
{
	struct stall_fair_share share = {};
	uint64_t flooded = 0, asked = 0, granted = 0;

	for (uint64_t ms = 0; ms < 30000; ms++) {
		for (uint32_t flow = 0; flow < 5; flow++)
			for (int i = 0; i < 20; i++)
				flooded +=
					stall_fair_take(&share, flow, COST, START + ms * MS, false);
		if (ms % 100)
			continue;
		asked++;
		granted += stall_fair_take(&share, 60, COST, START + ms * MS, false);
	}
	CHECK_INT(granted, asked);
	// The half that is for who comes first is used up, and the shares of those that flood.
	CHECK(flooded > 30 * BUDGET * 9 / 10);
	// In addition to the burst of each: the first flow finds itself alone.
	CHECK(flooded + granted <= 30 * BUDGET + 3 * BUDGET);
}

static void test_where_it_is_scarce_each_has_its_share_alone(void)
{
	struct stall_fair_share share = {};
	uint64_t granted[2] = {};

	for (uint64_t ms = 0; ms < 20000; ms++)
		for (int i = 0; i < 20; i++)
			for (uint32_t flow = 0; flow < 2; flow++)
				granted[flow] +=
					stall_fair_take(&share, flow, COST, START + ms * MS, true);
	CHECK(granted[0] <= 21 * BUDGET / 4 + BUDGET / 4 + 2);
	CHECK(granted[1] >= 20 * BUDGET / 4 - 2 && granted[1] <= 21 * BUDGET / 4 + 2);
}

// A flow that has not asked for some seconds has no part in it.
static void test_who_asks_no_more_leaves_its_share(void)
{
	struct stall_fair_share share = {};

	for (uint32_t flow = 0; flow < STALL_FLOWS; flow++)
		stall_fair_take(&share, flow, COST, START - 5 * SECOND, false);
	CHECK(flood(&share, 9, 50, 10, false) >= 11 * BUDGET - ROUNDING);
}

// Rows have one flow, each kind of file call has its own, and locks have some.
static void test_flows(void)
{
	struct stall_wait_key key = {.tgid = 1, .kind = STALL_WAIT_FUTEX};
	bool seen[STALL_FLOWS] = {};
	uint32_t count = 0;

	for (uint64_t id = 64; id < 64 * 1000; id += 64)
		for (uint32_t kind = 0; kind < STALL_WAIT_KINDS; kind++)
			for (uint32_t role = 0; role < (kind ? 1 : STALL_ROLES); role++)
				for (uint32_t type = STALL_RECORD_END; type <= STALL_RECORD_WAKER;
				     type++) {
					key.id = id;
					key.kind = kind;
					uint32_t flow = stall_flow_of(&key, role, type);

					CHECK(flow < STALL_FLOWS);
					count += flow < STALL_FLOWS && !seen[flow];
					if (flow < STALL_FLOWS)
						seen[flow] = true;
				}
	// Three types of all kinds but futexes, of all roles but two, and of eight of those.
	CHECK_INT(count, 3 * (STALL_WAIT_KINDS - 1 + STALL_ROLES - 2 + 2 * 8));
	CHECK(!seen[stall_flow(STALL_FLOW_EVENTS, STALL_RECORD_SERVER)]);
}

int main(void)
{
	test_one_alone_has_all();
	test_a_burst_of_one_alone();
	test_who_asks_for_little_gets_it();
	test_where_it_is_scarce_each_has_its_share_alone();
	test_who_asks_no_more_leaves_its_share();
	test_flows();
	return check_done();
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A budget of records per second. A flow that needs few records gets them, however many others
 * request. Shared by the BPF programs and their readers. */
#ifndef STALL_FAIR_SHARE_H
#define STALL_FAIR_SHARE_H

#ifndef __bpf__
#include <stdbool.h>
#endif

#include "ebpf/waits.h"

/*
 * Half of the budget is divided equally among the flows with recent requests. The other half goes
 * to the first that asks. So a single flow gets all of it, and a flood takes from the others only
 * what they do not use themselves.
 */
#define STALL_FLOWS 128
#define STALL_FAIR_BURST_NS 1000000000ULL
#define STALL_FAIR_PERIOD 30 /* "recent" is this period of 2^30 ns, and the one before */

struct stall_fair_share {
	__u64 common;		 /* when the next is due at an even rate */
	__u64 flow[STALL_FLOWS]; /* the same for the own share of each flow */
	__u64 period;
	__u64 asked[STALL_FLOWS / 64], asked_before[STALL_FLOWS / 64]; /* a bit for each flow */
};
_Static_assert(sizeof(struct stall_fair_share) == 8 * (2 + STALL_FLOWS + STALL_FLOWS / 32),
	       "no holes");

static inline bool stall_is_due(__u64 *clock, __u64 cost_ns, __u64 now)
{
	for (int i = 0; i < 4; i++) {
		__u64 seen = *(volatile __u64 *)clock;
		__u64 due = now > STALL_FAIR_BURST_NS && seen < now - STALL_FAIR_BURST_NS
				    ? now - STALL_FAIR_BURST_NS
				    : seen;

		if (due > now)
			return false;
		if (__sync_val_compare_and_swap(clock, seen, due + cost_ns) == seen)
			return true;
	}
	return true; /* many requests at this moment: counted next time */
}

/* The number of flows with recent requests, this one included. A race of two CPUs at the start of a
 * period can only make the share of that period too large. */
static inline __u32 stall_fair_flows(struct stall_fair_share *share, __u32 flow, __u64 now)
{
	__u64 period = now >> STALL_FAIR_PERIOD, seen = *(volatile __u64 *)&share->period;
	__u64 *asked = &share->asked[flow / 64 & 1], bit = 1ULL << (flow & 63);
	__u32 count = 0;

	if (seen != period && __sync_val_compare_and_swap(&share->period, seen, period) == seen) {
		for (int i = 0; i < STALL_FLOWS / 64; i++) {
			share->asked_before[i] = seen + 1 == period ? share->asked[i] : 0;
			share->asked[i] = 0;
		}
	}
	if (!(*(volatile __u64 *)asked & bit))
		__sync_fetch_and_or(asked, bit);
	for (int i = 0; i < STALL_FLOWS / 64; i++)
		count += __builtin_popcountll(share->asked[i] | share->asked_before[i]);
	return count ? count : 1;
}

/* `cost_ns`: a second divided by the budget. `is_scarce`: only the own share counts, since there is
 * little room left for the records. */
static inline bool stall_fair_take(struct stall_fair_share *share, __u32 flow, __u64 cost_ns,
				   __u64 now, bool is_scarce)
{
	flow &= STALL_FLOWS - 1;
	return stall_is_due(&share->flow[flow], 2 * cost_ns * stall_fair_flows(share, flow, now),
			    now) ||
	       (!is_scarce && stall_is_due(&share->common, 2 * cost_ns, now));
}

/* Of a futex wait: what its word is, with those of a mutex or rwlock apart, of which one may be
 * stormed. Words of one thread each (rows, tables), and words without a role, are one flow. Of all
 * others: the call. */
enum stall_flow_class {
	STALL_FLOW_ROLES = 0,
	STALL_FLOW_KINDS = STALL_ROLES - 1, /* the first kind is FUTEX */
	STALL_FLOW_EVENTS =
		STALL_FLOW_KINDS + STALL_WAIT_KINDS, /* of the server, that are no waits */
	STALL_FLOW_MUTEXES,
	STALL_FLOW_RWLOCKS = STALL_FLOW_MUTEXES + 8,
	STALL_FLOW_CLASSES = STALL_FLOW_RWLOCKS + 8,
};

static inline __u32 stall_flow_class_of(const struct stall_wait_key *key, __u32 role)
{
	__u32 one_of_eight = stall_wait_tag(key) >> 61;

	if (key->kind != STALL_WAIT_FUTEX)
		return STALL_FLOW_KINDS + key->kind;
	if (role == STALL_ROLE_MUTEX)
		return STALL_FLOW_MUTEXES + one_of_eight;
	if (role == STALL_ROLE_RWLOCK)
		return STALL_FLOW_RWLOCKS + one_of_eight;
	return STALL_FLOW_ROLES + role;
}

/* Records of each type have flows of their own: wakers are few, and one of them stands for many
 * waits. */
static inline __u32 stall_flow(__u32 flow_class, __u32 type)
{
	return flow_class * 3 + (type == STALL_RECORD_WAKER	  ? 0
				 : type == STALL_RECORD_IN_FLIGHT ? 1
								  : 2);
}

static inline __u32 stall_flow_of(const struct stall_wait_key *key, __u32 role, __u32 type)
{
	return stall_flow(stall_flow_class_of(key, role), type);
}

_Static_assert(STALL_FLOW_CLASSES * 3 <= STALL_FLOWS, "each has its own");

#endif

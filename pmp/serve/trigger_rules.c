// SPDX-License-Identifier: Apache-2.0
#include "serve/trigger_rules.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

// A wait's id has the number of its slot in the upper half: a thread is in one wait at a time. More
// threads than this are not supported.
#define SLOTS 16384

void stall_trigger_rules_init(struct stall_trigger_rules *rules)
{
	*rules = (struct stall_trigger_rules){.interval_ns = STALL_TRIGGER_INTERVAL_NS};
}

void stall_trigger_rules_set(struct stall_trigger_rules *rules, uint32_t kinds, uint64_t ns)
{
	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (kinds & 1u << i && !stall_watch_kind_is_idle(i))
			rules->threshold_ns[i] = ns;
}

bool stall_trigger_rules_any(const struct stall_trigger_rules *rules)
{
	for (int i = 0; i < STALL_WATCH_KINDS; i++)
		if (rules->threshold_ns[i])
			return true;
	return rules->convoy;
}

struct stall_error *stall_triggers_init(struct stall_triggers *triggers,
					const struct stall_trigger_rules *rules)
{
	uint64_t *decided = calloc(SLOTS, sizeof(*decided));
	uint32_t *places = calloc(SLOTS, sizeof(*places));

	if (!decided || !places) {
		free(decided);
		free(places);
		return &stall_enomem;
	}
	*triggers = (struct stall_triggers){
		.rules = *rules,
		.places = places,
		.decided = decided,
	};
	return NULL;
}

static uint32_t *place(struct stall_triggers *triggers, uint64_t wait)
{
	return &triggers->places[(wait >> 32) % SLOTS];
}

static void drop_pending(struct stall_triggers *triggers, size_t i)
{
	const struct stall_trigger_wait last = triggers->pending[--triggers->pending_count];

	free((char *)triggers->pending[i].name);
	*place(triggers, triggers->pending[i].wait) = 0;
	if (i == triggers->pending_count)
		return;
	triggers->pending[i] = last;
	*place(triggers, last.wait) = i + 1;
}

void stall_triggers_deinit(struct stall_triggers *triggers)
{
	while (triggers->pending_count)
		drop_pending(triggers, 0);
	free(triggers->pending);
	free(triggers->places);
	free(triggers->decided);
}

void stall_triggers_set(struct stall_triggers *triggers, uint32_t kinds, uint64_t ns)
{
	stall_trigger_rules_set(&triggers->rules, kinds, ns);
	for (size_t i = triggers->pending_count; i-- > 0;)
		if (!triggers->rules.threshold_ns[triggers->pending[i].kind])
			drop_pending(triggers, i);
}

void stall_triggers_forget(struct stall_triggers *triggers)
{
	while (triggers->pending_count)
		drop_pending(triggers, 0);
	memset(triggers->decided, 0, SLOTS * sizeof(*triggers->decided));
}

static uint64_t *decided(struct stall_triggers *triggers, uint64_t wait)
{
	return &triggers->decided[(wait >> 32) % SLOTS];
}

static uint64_t due_ns(const struct stall_triggers *triggers, const struct stall_trigger_wait *wait)
{
	uint64_t threshold_ns = triggers->rules.threshold_ns[wait->kind];
	uint64_t due;

	if (!threshold_ns || __builtin_add_overflow(wait->start_ns, threshold_ns, &due))
		return UINT64_MAX;
	return due;
}

enum stall_trigger_verdict stall_triggers_consider(struct stall_triggers *triggers,
						   const struct stall_trigger_wait *wait,
						   uint64_t now_ns, struct stall_trigger *ret)
{
	const struct stall_trigger_rules *rules = &triggers->rules;
	uint64_t threshold_ns = rules->threshold_ns[wait->kind];
	bool late = now_ns >= due_ns(triggers, wait);

	if (stall_watch_kind_is_idle(wait->kind) || *decided(triggers, wait->wait) == wait->wait)
		return STALL_TRIGGER_NEVER;
	if (!late && !(rules->convoy && wait->waiters >= rules->convoy))
		return threshold_ns ? STALL_TRIGGER_LATER : STALL_TRIGGER_NEVER;
	*decided(triggers, wait->wait) = wait->wait;
	if (triggers->last_ns && now_ns - triggers->last_ns < rules->interval_ns) {
		triggers->suppressed++;
		return STALL_TRIGGER_SUPPRESSED;
	}
	if (!late)
		threshold_ns = wait->threshold_ns;
	// The wait is too long only now, which was not so when its record was received.
	uint64_t crossed_ns = wait->start_ns + threshold_ns;
	uint64_t received_ns = wait->received_ns < crossed_ns ? now_ns : wait->received_ns;
	*ret = (struct stall_trigger){
		.reason = late ? "threshold" : "convoy",
		.kind = stall_watch_kind_name(wait->kind),
		.address = wait->address,
		.pid = wait->pid,
		.tid = wait->tid,
		.length_ns = received_ns - wait->start_ns,
		.threshold_ns = threshold_ns,
		.waiters = wait->waiters,
		.crossed_ns = crossed_ns,
		.received_ns = received_ns,
		.suppressed = triggers->suppressed,
	};
	stall_trigger_set_name(ret, wait->name);
	triggers->last_ns = now_ns;
	triggers->suppressed = 0;
	return STALL_TRIGGER_NOW;
}

struct stall_error *stall_triggers_keep(struct stall_triggers *triggers,
					const struct stall_trigger_wait *wait)
{
	struct stall_trigger_wait copy = *wait;
	uint32_t before = *place(triggers, wait->wait);

	// The thread's previous wait is over. Another thread's wait might have taken a capture:
	// report that.
	if (before) {
		triggers->suppressed +=
			triggers->pending[before - 1].wait >> 32 != wait->wait >> 32;
		drop_pending(triggers, before - 1);
	}
	if (!stall_array_reserve(&triggers->pending, triggers->pending_count, 1,
				 &triggers->pending_capacity))
		return &stall_enomem;
	if (wait->name) {
		copy.name = strdup(wait->name);
		if (!copy.name)
			return &stall_enomem;
	}
	triggers->pending[triggers->pending_count++] = copy;
	*place(triggers, wait->wait) = triggers->pending_count;
	return NULL;
}

uint64_t stall_triggers_next_ns(const struct stall_triggers *triggers)
{
	uint64_t next = UINT64_MAX;

	for (size_t i = 0; i < triggers->pending_count; i++) {
		uint64_t due = due_ns(triggers, &triggers->pending[i]);
		if (due < next)
			next = due;
	}
	return next;
}

bool stall_triggers_take_due(struct stall_triggers *triggers, uint64_t now_ns,
			     struct stall_trigger_wait *ret, char **ret_name)
{
	for (size_t i = 0; i < triggers->pending_count; i++) {
		if (due_ns(triggers, &triggers->pending[i]) > now_ns)
			continue;
		*ret = triggers->pending[i];
		*ret_name = (char *)ret->name;
		triggers->pending[i].name = NULL;
		drop_pending(triggers, i);
		return true;
	}
	return false;
}

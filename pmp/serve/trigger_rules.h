// SPDX-License-Identifier: Apache-2.0
// Which waits take a capture, and when: thresholds by kind, convoys, and no more than one in an
// interval. No I/O and no clock of its own.
#ifndef STALL_TRIGGER_RULES_H
#define STALL_TRIGGER_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "capture/records.h"
#include "ebpf/wait_kinds.h"

struct stall_trigger_rules {
	uint64_t threshold_ns[STALL_WATCH_KINDS]; // 0: such waits take no capture
	uint32_t convoy;      // threads that wait for the same lock or file; 0: never
	uint64_t interval_ns; // least time between two captures
};

// The default: a probe that is run by hand in a stall must not become a load.
#define STALL_TRIGGER_INTERVAL_NS UINT64_C(10000000000)

// Never a capture; once thresholds are set, at most one each STALL_TRIGGER_INTERVAL_NS.
void stall_trigger_rules_init(struct stall_trigger_rules *rules);
// For these kinds (1 << enum stall_watch_kind), except for idle ones.
void stall_trigger_rules_set(struct stall_trigger_rules *rules, uint32_t kinds, uint64_t ns);
bool stall_trigger_rules_any(const struct stall_trigger_rules *rules);

// A wait in flight, as its record was received. Times are CLOCK_MONOTONIC.
struct stall_trigger_wait {
	uint64_t wait;	  // as in struct stall_watch_alarm
	const char *name; // of the lock or file, NULL not known yet
	enum stall_watch_kind kind;
	pid_t pid, tid;
	uint64_t address;
	uint64_t start_ns, received_ns;
	uint64_t threshold_ns; // that it has passed already
	uint32_t waiters;
};

struct stall_triggers {
	struct stall_trigger_rules rules;
	uint64_t last_ns; // when the last capture was decided on, 0: never
	uint64_t suppressed;
	struct stall_trigger_wait *pending; // that are watched, but not long enough for a capture
	size_t pending_count, pending_capacity;
	uint32_t *places;  // by slot: 1 + where its wait is among those; 0: nowhere
	uint64_t *decided; // by slot: the wait that was decided on last
};

struct stall_error *stall_triggers_init(struct stall_triggers *triggers,
					const struct stall_trigger_rules *rules);
void stall_triggers_deinit(struct stall_triggers *triggers);

// As stall_trigger_rules_set, from now on.
void stall_triggers_set(struct stall_triggers *triggers, uint32_t kinds, uint64_t ns);
// Forgets all waits: the watch has started again.
void stall_triggers_forget(struct stall_triggers *triggers);

enum stall_trigger_verdict {
	STALL_TRIGGER_NEVER,	  // no rule is for it, or it was decided on before
	STALL_TRIGGER_LATER,	  // if it lasts: stall_triggers_keep()
	STALL_TRIGGER_SUPPRESSED, // too soon after the last capture; counted
	STALL_TRIGGER_NOW,	  // *ret has the reason
};
enum stall_trigger_verdict stall_triggers_consider(struct stall_triggers *triggers,
						   const struct stall_trigger_wait *wait,
						   uint64_t now_ns, struct stall_trigger *ret);

// Keeps a copy until it is long enough, or the same thread's next wait is kept. The caller must
// check whether it is still in flight then.
struct stall_error *stall_triggers_keep(struct stall_triggers *triggers,
					const struct stall_trigger_wait *wait);

// When the next of the waits that are kept is long enough; UINT64_MAX: none is kept.
uint64_t stall_triggers_next_ns(const struct stall_triggers *triggers);
// Removes a wait that is long enough by now from those that are kept; the caller frees its name.
bool stall_triggers_take_due(struct stall_triggers *triggers, uint64_t now_ns,
			     struct stall_trigger_wait *ret, char **ret_name);

#endif

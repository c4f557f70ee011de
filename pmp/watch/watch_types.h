// SPDX-License-Identifier: Apache-2.0
// The options of a watch, and its events.
#ifndef STALL_WATCH_TYPES_H
#define STALL_WATCH_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ebpf/wait_kinds.h"
#include "unwind/worker.h"
#include "waits/wait_source.h"

#define STALL_WATCH_MAX_TOP 1000

struct stall_watch_options {
	struct stall_wait_source_options source;
	struct stall_worker_options worker;
	uint32_t
		kinds; // 1 << enum stall_watch_kind: the requested kinds; source.kinds follows from it
	uint32_t top; // keys in a line, default 20
	bool events;  // report each event
	bool history; // what all threads do, once a second, where the source can sample
};

// One event: a wait over its threshold, in flight or ended. Strings and frames live until the
// handler returns.
struct stall_watch_event {
	bool in_flight;
	uint64_t wait;	  // in flight: which wait, see struct stall_watch_alarm
	const char *kind; // "mutex", "fsync", ...: as in stallscope.waits/1
	const char *name; // of the lock or file
	pid_t tid, tgid;
	const char *comm;
	uint64_t start_ns, length_ns; // CLOCK_MONOTONIC; so far, where in flight
	uint64_t received_ns;	      // when its record was received
	uint64_t threshold_ns;	      // that it has passed
	uint32_t waiters;	      // threads in a wait for the same key now, this one included
	uint64_t address;	      // of the lock word, 0 for files
	pid_t owner_tid;	      // that the lock word has now, 0 unknown
	const char *const *frames;    // innermost first, the waiter's; may be none yet
	size_t frame_count;
	const char *label; // "verified": copied while the thread stayed in this very wait
	pid_t waker_tid;   // ended waits: who woke it, 0 unknown
	const char *const *waker_frames;
	size_t waker_frame_count;
};
typedef void (*stall_watch_event_fn)(void *arg, const struct stall_watch_event *event);

// The data that is known at once of a wait in flight that has passed its threshold: its stack is
// copied, and nothing is unwound or named yet. Its event follows, unless it is one that is never
// reported (a thread that waits for work) or was over by then.
struct stall_watch_alarm {
	uint64_t wait; // which wait: the same in its event
	enum stall_wait_kind kind;
	enum stall_wait_role role; // ROLE_UNKNOWN for a new futex word
	pid_t tid, tgid;
	uint64_t start_ns, received_ns; // CLOCK_MONOTONIC
	uint64_t threshold_ns;
	uint32_t waiters; // as in the event
};
typedef void (*stall_watch_alarm_fn)(void *arg, const struct stall_watch_alarm *alarm);

#endif

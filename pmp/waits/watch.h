// SPDX-License-Identifier: Apache-2.0
// Watches processes by the wait programs: takes their records, unwinds and names the stacks in them,
// keeps what is known of each lock and file, and writes lines of stallscope.waits/1.
#ifndef STALL_WATCH_H
#define STALL_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "ebpf/wait_kinds.h"
#include "unwind/worker.h"
#include "waits/wait_source.h"

#define STALL_WATCH_MAX_TOP 1000

struct stall_watch_options {
	struct stall_wait_source_options source;
	struct stall_worker_options worker;
	uint32_t
		kinds; // 1 << enum stall_watch_kind: what is asked for; source.kinds follows from it
	uint32_t top;  // keys in a line, default 20
	bool events;   // hand on each event
};
void stall_watch_options_init(struct stall_watch_options *options);

// One event as it is handed on: a wait that goes on, or one that has ended, over its threshold.
// Strings and frames live until the handler returns.
struct stall_watch_event {
	bool in_flight;
	uint64_t wait;	  // in flight: which wait, see struct stall_watch_alarm
	const char *kind; // "mutex", "fsync", ...: as in stallscope.waits/1
	const char *name; // of the lock or file
	pid_t tid, tgid;
	const char *comm;
	uint64_t start_ns, length_ns; // CLOCK_MONOTONIC; so far, where in flight
	uint64_t received_ns;	      // when this program learnt of it
	uint64_t threshold_ns;	      // that it has passed
	uint32_t waiters;	      // threads in a wait for the same key now, this one included
	uint64_t address;	      // of the lock word, 0 for files
	pid_t owner_tid;	      // that the lock word tells now, 0 unknown
	const char *const *frames;    // innermost first, the waiter's; may be none yet
	size_t frame_count;
	const char *label; // "verified": copied while the thread stayed in this very wait
	pid_t waker_tid;   // ended waits: who woke it, 0 unknown
	const char *const *waker_frames;
	size_t waker_frame_count;
};
typedef void (*stall_watch_event_fn)(void *arg, const struct stall_watch_event *event);

// The little that is known at once of a wait that has passed its threshold and goes on: its stack is
// copied, and nothing is unwound or named yet. Its event follows, unless it is one
// that is never told (a thread that waits for work) or was over by then.
struct stall_watch_alarm {
	uint64_t wait; // which wait: the same in its event
	enum stall_wait_kind kind;
	enum stall_wait_role role; // of a futex word that was not met before: ROLE_UNKNOWN
	pid_t tid, tgid;
	uint64_t start_ns, received_ns; // CLOCK_MONOTONIC
	uint64_t threshold_ns;
	uint32_t waiters; // as in the event
};
typedef void (*stall_watch_alarm_fn)(void *arg, const struct stall_watch_alarm *alarm);

struct stall_watch;

struct stall_error *stall_watch_create(const struct stall_watch_options *options, const pid_t *pids,
				       size_t pid_count, stall_watch_event_fn handler, void *arg,
				       struct stall_watch **ret);
void stall_watch_destroy(struct stall_watch *watch);

// One more process, e.g. the server after its restart; totals go on. One that has no ring yet is
// watched as soon as it has.
struct stall_error *stall_watch_add(struct stall_watch *watch, pid_t pid);
// Threads in a wait for the same as this one (an event's or alarm's `wait`), itself included; 0: it
// is over.
uint32_t stall_watch_still_waiting(struct stall_watch *watch, uint64_t wait);
// That it is over, and has been learnt of more than a moment ago: a capture was taken for another one
// since, or a batch of stacks unwound. Then it is no cause for a capture.
bool stall_watch_is_stale(const struct stall_watch *watch, uint64_t wait, uint64_t received_ns);
// Called from stall_watch_dispatch, with the `arg` of the event handler.
void stall_watch_set_alarm(struct stall_watch *watch, stall_watch_alarm_fn alarm);
// Of waits that begin from now on; `kind` as in stallscope.waits/1.
struct stall_error *stall_watch_set_threshold(struct stall_watch *watch, const char *kind,
					      uint64_t ns);
// The lowest of all processes.
uint64_t stall_watch_threshold(const struct stall_watch *watch, enum stall_wait_kind kind);
// Processes that are left; 0: all have ended.
size_t stall_watch_alive(const struct stall_watch *watch);
// One that has ended since it was last asked for; 0: none.
pid_t stall_watch_take_ended(struct stall_watch *watch);

// To poll(2); POLLIN: call stall_watch_dispatch. timeout_ms is when to call it anyway.
int stall_watch_fd(const struct stall_watch *watch);
int stall_watch_timeout_ms(const struct stall_watch *watch);
struct stall_error *stall_watch_dispatch(struct stall_watch *watch);
// The same once more before the last line: what has ended by now is in it.
struct stall_error *stall_watch_dispatch_last(struct stall_watch *watch);

// One line of stallscope.waits/1: what happened since the line before, or since the start (`final`).
struct stall_error *stall_watch_write(struct stall_watch *watch, bool final,
				      struct stall_json *json);

// An event, as a member object of a line ({"kind": ..., "name": ...}).
void stall_watch_event_write(const struct stall_watch_event *event, struct stall_json *json);

static inline void stall_watch_destroyp(struct stall_watch **watch)
{
	stall_watch_destroy(*watch);
}

#endif

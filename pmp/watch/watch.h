// SPDX-License-Identifier: Apache-2.0
// Watches processes by the wait programs: takes their records, unwinds and names the stacks in
// them, keeps a table of locks and files, and writes lines of stallscope.waits/1 (watch_events.h).
// Its processes: watch_processes.h.
#ifndef STALL_WATCH_H
#define STALL_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "watch/watch_types.h"

void stall_watch_options_init(struct stall_watch_options *options);

struct stall_watch;

struct stall_error *stall_watch_create(const struct stall_watch_options *options, const pid_t *pids,
				       size_t pid_count, stall_watch_event_fn handler, void *arg,
				       struct stall_watch **ret);
void stall_watch_destroy(struct stall_watch *watch);

// Called from stall_watch_dispatch, with the `arg` of the event handler.
void stall_watch_set_alarm(struct stall_watch *watch, stall_watch_alarm_fn alarm);
// Of waits that begin from now on; `kind` as in stallscope.waits/1.
struct stall_error *stall_watch_set_threshold(struct stall_watch *watch, const char *kind,
					      uint64_t ns);
// The lowest of all processes.
uint64_t stall_watch_threshold(const struct stall_watch *watch, enum stall_wait_kind kind);

// For poll(2); POLLIN: call stall_watch_dispatch. timeout_ms is when to call it anyway.
int stall_watch_fd(const struct stall_watch *watch);
int stall_watch_timeout_ms(const struct stall_watch *watch);
struct stall_error *stall_watch_dispatch(struct stall_watch *watch);
// The same once more before the last line: what has ended by now is in it.
struct stall_error *stall_watch_dispatch_last(struct stall_watch *watch);

static inline void stall_watch_destroyp(struct stall_watch **watch)
{
	stall_watch_destroy(*watch);
}

#endif

// SPDX-License-Identifier: Apache-2.0
// From records to counts of waiters and holders, and to events.
#ifndef STALL_WATCH_EVENTS_H
#define STALL_WATCH_EVENTS_H

#include <stdbool.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "waits/wait_unwind.h"
#include "watch/watch_types.h"

struct stall_watch;

struct stall_error *stall_watch_apply(struct stall_watch *watch, struct stall_wait_item *item);

// An event, as a member object of a line ({"kind": ..., "name": ...}).
void stall_watch_event_write(const struct stall_watch_event *event, struct stall_json *json);

struct stall_watch;

// How often a source that rests saw a long wait after a second without one; 0 from other sources.
uint64_t stall_watch_alerts(const struct stall_watch *watch);
// One line of stallscope.waits/1: what happened since the line before, or since the start
// (`final`).
struct stall_error *stall_watch_write(struct stall_watch *watch, bool final,
				      struct stall_json *json);

#endif

// SPDX-License-Identifier: Apache-2.0
// Roles, names and owners of locks and files, from records.
#ifndef STALL_WATCH_ROLES_H
#define STALL_WATCH_ROLES_H

#include "base/error.h"
#include "ebpf/waits.h"
#include "waits/wait_table.h"
#include "waits/wait_unwind.h"

struct stall_watch;

struct stall_error *stall_watch_identify(struct stall_watch *watch, struct stall_wait_item *item);
// Identifies words that threads wait on now and that no record has named: waits that are no longer
// than their threshold yet.
struct stall_error *stall_watch_identify_in_flight(struct stall_watch *watch);
struct stall_error *stall_watch_name_file(struct stall_watch *watch,
					  const struct stall_wait_file *file);
// Names a file that no record has named, if its source can.
struct stall_error *stall_watch_find_file(struct stall_watch *watch,
					  const struct stall_wait_entry *entry);

#endif

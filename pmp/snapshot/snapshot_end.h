// SPDX-License-Identifier: Apache-2.0
// The last check of the processes of a snapshot, when all is read.
#ifndef STALL_SNAPSHOT_END_H
#define STALL_SNAPSHOT_END_H

#include "snapshot/snapshot.h"

// What was read by the number of a process that has ended meanwhile may be another's: its threads
// go, with a note. Where no thread is left, STALL_ERROR_NO_PROCESS.
struct stall_error *stall_snapshot_drop_ended(struct stall_snapshot *snapshot);

#endif

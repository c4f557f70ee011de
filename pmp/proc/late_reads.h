// SPDX-License-Identifier: Apache-2.0
// What reads of other processes have waited for and did not get, so that the next ones wait for less. The
// caller has a lock. Only pmp/proc includes it.
#ifndef STALL_LATE_READS_H
#define STALL_LATE_READS_H

#include <stdbool.h>
#include <stdint.h>

#include "proc/read_call.h"

bool stall_read_cause_is_same(const struct stall_read_cause *a, const struct stall_read_cause *b);

void stall_late_reads_mark_late(const struct stall_read_cause *cause);
void stall_late_reads_mark_well(const struct stall_read_cause *cause);
// `patience_ns`, less where a read was late before, or 0: the read is not tried, which is
// remembered.
uint64_t stall_late_reads_patience(const struct stall_read_cause *cause, uint64_t patience_ns);
// Whether one was late, or was not tried, since then (CLOCK_MONOTONIC).
bool stall_late_reads_have_since(const struct stall_read_cause *cause, uint64_t since_ns);

#endif

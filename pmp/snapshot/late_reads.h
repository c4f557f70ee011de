// SPDX-License-Identifier: Apache-2.0
// Remembers of which processes a read was late (read_child.h), and how long the next may take.
#ifndef STALL_LATE_READS_H
#define STALL_LATE_READS_H

#include <stdbool.h>
#include <stdint.h>

#include "snapshot/target.h"

void stall_late_reads_mark_late(const struct stall_target *target);
void stall_late_reads_mark_well(const struct stall_target *target);

// `patience_ns`, less where a read was late before, or 0: it is not tried, and that is remembered.
uint64_t stall_late_reads_patience(const struct stall_target *target, uint64_t patience_ns);

// Whether one was late, or not tried, since then (CLOCK_MONOTONIC).
bool stall_late_reads_since(const struct stall_target *target, uint64_t since_ns);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "proc/late_reads.h"

#include <stddef.h>
#include <time.h>

#include "base/clock.h"

#define MAX_LATE 16 // causes that are remembered
#define MS UINT64_C(1000000)
#define SHORT_PATIENCE_NS (20 * MS) // where a read was late before
#define ALONE_NS (1000 * MS)

bool stall_read_cause_is_same(const struct stall_read_cause *a, const struct stall_read_cause *b)
{
	return a->pid == b->pid && a->start_time == b->start_time && a->is_path == b->is_path &&
	       a->device == b->device;
}

// Causes for which a read was late.
static struct late {
	struct stall_read_cause cause;
	uint64_t at_ns;	     // when a read was late,
	uint64_t refused_ns; // when one was not tried after it,
	uint64_t well_ns;    // and when one went well
} late_reads[MAX_LATE];

static struct late *find_late(const struct stall_read_cause *cause)
{
	for (size_t i = 0; i < MAX_LATE; i++)
		if (late_reads[i].at_ns && stall_read_cause_is_same(&late_reads[i].cause, cause))
			return &late_reads[i];
	return NULL;
}

void stall_late_reads_mark_late(const struct stall_read_cause *cause)
{
	struct late *late = find_late(cause);

	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!late_reads[i].at_ns)
			late = &late_reads[i];
	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!i || late_reads[i].at_ns < late->at_ns)
			late = &late_reads[i];
	*late = (struct late){.cause = *cause, .at_ns = stall_clock_ns(CLOCK_MONOTONIC)};
}

void stall_late_reads_mark_well(const struct stall_read_cause *cause)
{
	struct late *late = find_late(cause);

	if (late)
		late->well_ns = stall_clock_ns(CLOCK_MONOTONIC);
}

uint64_t stall_late_reads_patience(const struct stall_read_cause *cause, uint64_t patience_ns)
{
	struct late *late = find_late(cause);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (!late || late->at_ns <= late->well_ns)
		return patience_ns;
	if (now_ns - late->at_ns >= ALONE_NS)
		return SHORT_PATIENCE_NS;
	late->refused_ns = now_ns;
	return 0;
}

bool stall_late_reads_have_since(const struct stall_read_cause *cause, uint64_t since_ns)
{
	const struct late *late = find_late(cause);

	return late && (late->at_ns >= since_ns || late->refused_ns >= since_ns);
}

// SPDX-License-Identifier: Apache-2.0
#include "snapshot/late_reads.h"

#include <sys/types.h>

#include "base/clock.h"

#define MAX_LATE 16 // processes that are remembered
#define MS UINT64_C(1000000)
#define SHORT_PATIENCE_NS (20 * MS) // where a read was late before
#define ALONE_NS (1000 * MS)

static struct late {
	pid_t pid;
	uint64_t start_time;
	uint64_t at_ns;	     // when a read was late,
	uint64_t refused_ns; // when one was not tried after it,
	uint64_t well_ns;    // and when one went well
} late_reads[MAX_LATE];

static struct late *find_late(const struct stall_target *target)
{
	for (size_t i = 0; i < MAX_LATE; i++)
		if (late_reads[i].pid == target->pid &&
		    late_reads[i].start_time == target->start_time)
			return &late_reads[i];
	return NULL;
}

void stall_late_reads_mark_late(const struct stall_target *target)
{
	struct late *late = find_late(target);

	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!late_reads[i].pid)
			late = &late_reads[i];
	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!i || late_reads[i].at_ns < late->at_ns)
			late = &late_reads[i];
	*late = (struct late){
		.pid = target->pid,
		.start_time = target->start_time,
		.at_ns = stall_clock_ns(CLOCK_MONOTONIC),
	};
}

void stall_late_reads_mark_well(const struct stall_target *target)
{
	struct late *late = find_late(target);

	if (late)
		late->well_ns = stall_clock_ns(CLOCK_MONOTONIC);
}

bool stall_late_reads_since(const struct stall_target *target, uint64_t since_ns)
{
	const struct late *late = find_late(target);

	return late && (late->at_ns >= since_ns || late->refused_ns >= since_ns);
}

uint64_t stall_late_reads_patience(const struct stall_target *target, uint64_t patience_ns)
{
	struct late *late = find_late(target);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (!late || late->at_ns <= late->well_ns)
		return patience_ns;
	if (now_ns - late->at_ns >= ALONE_NS)
		return SHORT_PATIENCE_NS;
	late->refused_ns = now_ns;
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "capture/burst.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "capture/fields.h"

// However long a capture takes: two captures do not distinguish a wait that lasts from one that was
// seen twice by chance.
enum { least_captures = 3 };

struct stall_burst {
	struct stall_capturer *capturer;
	struct stall_burst_options options;
	struct stall_output *output;
	uint64_t begun_ns;
	uint64_t clock_ns; // the first one was written
	uint64_t next_ns;
	unsigned int taken, failed;
	bool partial;
	const char *ended; // static: why it is over early; NULL: it is not
};

void stall_burst_destroy(struct stall_burst *burst)
{
	if (!burst)
		return;
	stall_capturer_burst_end(burst->capturer);
	free(burst);
}

uint64_t stall_burst_next_ns(const struct stall_burst *burst)
{
	return burst->next_ns;
}

void stall_burst_stop(struct stall_burst *burst, const char *reason)
{
	burst->ended = reason;
	burst->next_ns = 0;
}

// A capture that took long makes the burst coarser, and at most a sixth longer unless it has too few
// captures yet: half of the time at most is spent on captures.
static void schedule(struct stall_burst *burst, uint64_t took_ns)
{
	const struct stall_burst_options *options = &burst->options;
	uint64_t earliest = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t length = options->captures * options->interval_ns;

	if (took_ns * 2 > options->interval_ns)
		earliest += took_ns;
	burst->next_ns += options->interval_ns;
	if (burst->next_ns < earliest)
		burst->next_ns = earliest;
	if (burst->taken + burst->failed >= options->captures)
		burst->next_ns = 0;
	else if (burst->next_ns > burst->begun_ns + options->deadline_ns)
		stall_burst_stop(burst, "the deadline was reached");
	else if (burst->taken >= least_captures &&
		 burst->next_ns > burst->clock_ns + length + length / 6)
		stall_burst_stop(burst, "the captures took too long");
}

// The first capture may have read the symbols of large files, which takes a second: the clock of
// the others begins after it.
static void schedule_first(struct stall_burst *burst)
{
	burst->clock_ns = burst->next_ns = stall_clock_ns(CLOCK_MONOTONIC);
	schedule(burst, 0);
}

struct stall_error *stall_burst_begin(struct stall_capturer *capturer,
				      const struct stall_burst_options *options,
				      const struct stall_trigger *trigger, bool taken,
				      struct stall_output *output, struct stall_burst **ret)
{
	_cleanup_(stall_burst_destroyp) struct stall_burst *burst = calloc(1, sizeof(*burst));
	struct stall_error *err;

	if (!burst)
		return &stall_enomem;
	*burst = (struct stall_burst){
		.capturer = capturer,
		.options = *options,
		.output = output,
		.begun_ns = stall_clock_ns(CLOCK_MONOTONIC),
	};
	err = taken ? NULL : stall_capturer_take(capturer);
	// After the first: what it costs to start the samples delays no stacks.
	if (!err)
		err = stall_capturer_burst_begin(capturer);
	if (!err)
		err = stall_capturer_finish(capturer, trigger, output, &burst->partial);
	if (err)
		return err;
	burst->taken = 1;
	if (stall_capturer_stops_threads(capturer))
		stall_burst_stop(burst, "each capture of this backend stops threads");
	else
		schedule_first(burst);
	*ret = no_cleanup_ptr(burst);
	return NULL;
}

// Takes the error over.
static void note_failure(struct stall_burst *burst, struct stall_error *failed)
{
	burst->failed++;
	if (failed->code == STALL_ERROR_NO_PROCESS)
		stall_burst_stop(burst, "the process has ended");
	stall_error_destroy(failed);
}

struct stall_error *stall_burst_step(struct stall_burst *burst)
{
	uint64_t start = stall_clock_ns(CLOCK_MONOTONIC);
	bool partial = false;
	struct stall_error *failed = stall_capturer_take(burst->capturer);

	if (failed) {
		note_failure(burst, failed);
	} else {
		struct stall_error *err =
			stall_capturer_finish(burst->capturer, NULL, burst->output, &partial);
		if (err)
			return err;
		burst->taken++;
		burst->partial |= partial;
	}
	if (!burst->ended)
		schedule(burst, stall_clock_ns(CLOCK_MONOTONIC) - start);
	return NULL;
}

struct stall_error *stall_burst_finish(struct stall_burst *burst, bool *ret_partial)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_json_init(&json);
	stall_record_burst(&json);
	stall_put_burst_wanted(&json, burst->options.captures);
	stall_put_burst_taken(&json, burst->taken);
	stall_put_burst_failed(&json, burst->failed);
	stall_put_burst_ended(&json, burst->ended);
	stall_json_close(&json, '}');
	stall_json_newline(&json);
	*ret_partial = burst->partial;
	if (json.failed)
		return &stall_enomem;
	return stall_output_write(burst->output, json.data, json.size);
}

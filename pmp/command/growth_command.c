// SPDX-License-Identifier: Apache-2.0
#include "command/growth_command.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "base/signals.h"
#include "growth/growth_json.h"

static struct stall_error *write_ready(const struct stall_growth *growth, int out)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_json_init(&json);
	stall_growth_write_ready(growth, &json);
	return stall_lines_write(&json, out);
}

static struct stall_error *write_end(const struct stall_growth *growth, int out, bool *ret_partial)
{
	_cleanup_(stall_json_deinit) struct stall_json json;

	stall_json_init(&json);
	stall_growth_write_end(growth, &json, ret_partial);
	return stall_lines_write(&json, out);
}

static struct stall_error *record(struct stall_growth *growth, uint64_t until_ns, int signals)
{
	struct pollfd ended = {.fd = signals, .events = POLLIN};
	struct stall_error *err = NULL;
	bool over = false;

	while (!err && !over && stall_clock_ns(CLOCK_MONOTONIC) < until_ns) {
		uint64_t left_ms = (until_ns - stall_clock_ns(CLOCK_MONOTONIC)) / 1000000 + 1;
		int ms = left_ms < STALL_GROWTH_POLL_MS ? (int)left_ms : STALL_GROWTH_POLL_MS;

		if (poll(&ended, 1, ms) < 0 && errno != EINTR)
			return stall_error_os(errno, "poll");
		over = ended.revents != 0;
		if (!over)
			err = stall_growth_poll(growth, &over);
	}
	return err;
}

struct stall_error *stall_growth_run(const struct stall_growth_options *options, int out,
				     bool *ret_partial)
{
	_cleanup_(stall_growth_destroyp) struct stall_growth *growth = NULL;
	_cleanup_close_ int signals = -1;
	struct stall_error *err = stall_signals_block(&signals);

	if (!err)
		err = stall_growth_create(options, &growth);
	if (!err)
		err = write_ready(growth, out);
	if (!err)
		err = record(growth, stall_clock_ns(CLOCK_MONOTONIC) + options->duration_ns,
			     signals);
	if (!err)
		err = stall_growth_finish(growth);
	return err ? err : write_end(growth, out, ret_partial);
}

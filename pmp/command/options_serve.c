// SPDX-License-Identifier: Apache-2.0
#include "command/options_serve.h"

#include "base/options_text.h"
#include "command/options_watch.h"

#define MAX_CONVOY 65536

struct stall_error *stall_options_add_capture_threshold(struct stall_serve_options *options,
							const char *text)
{
	uint32_t kinds = 0;
	uint64_t ns = 0;
	struct stall_error *err =
		stall_options_parse_threshold("capture-threshold", text, &kinds, &ns);

	if (!err)
		stall_trigger_rules_set(&options->rules, kinds, ns);
	return err;
}

struct stall_error *stall_options_set_convoy(struct stall_serve_options *options, const char *text)
{
	uint64_t count;
	struct stall_error *err = stall_parse_number("convoy", text, 2, MAX_CONVOY, &count);

	if (!err)
		options->rules.convoy = count;
	return err;
}

struct stall_error *stall_options_set_capture_interval(struct stall_serve_options *options,
						       const char *text)
{
	uint64_t ns;
	struct stall_error *err = stall_parse_ms("capture-interval", text, &ns);

	if (!err)
		options->rules.interval_ns = ns;
	return err;
}

void stall_options_complete_serve(struct stall_options *options)
{
	struct stall_serve_options *serve = &options->serve;

	if (serve->captures && !stall_trigger_rules_any(&serve->rules))
		stall_trigger_rules_set(&serve->rules, stall_watch_kinds_parse("all"),
					STALL_TRIGGER_THRESHOLD_NS);
	if (options->interval_given)
		serve->line_ns = options->waits.interval_ns;
	serve->watch |= serve->events || serve->line_ns || stall_trigger_rules_any(&serve->rules);
}

// SPDX-License-Identifier: Apache-2.0
#include "command/watch_options.h"

#include <string.h>

#include "base/options_text.h"

#define MAX_NAME 32
#define MAX_CONVOY 65536
#define MIN_POLL_NS 1000000
#define MAX_POLL_NS UINT64_C(10000000000)

static struct stall_error *parse_kinds(const char *option, const char *name, uint32_t *ret)
{
	uint32_t kinds = stall_watch_kinds_parse(name);

	if (!kinds)
		return stall_usage("--%s \"%s\": no kind of wait and no group (lock, sync, space, "
				   "io, all)",
				   option, name);
	*ret = kinds;
	return NULL;
}

struct stall_error *stall_option_kind(struct stall_watch_options *options, const char *text,
				      bool *given)
{
	uint32_t kinds = 0;
	struct stall_error *err = parse_kinds("kind", text, &kinds);

	if (err)
		return err;
	options->kinds = *given ? options->kinds | kinds : kinds;
	*given = true;
	return NULL;
}

// "MS" or "KIND=MS", where KIND may be a group.
static struct stall_error *parse_threshold(const char *option, const char *text,
					   uint32_t *ret_kinds, uint64_t *ret_ns)
{
	const char *equals = strchr(text, '=');
	char name[MAX_NAME] = "all";

	if (equals && (size_t)(equals - text) < sizeof(name)) {
		memcpy(name, text, equals - text);
		name[equals - text] = '\0';
	} else if (equals) {
		equals = NULL; // no kind has such a long name, and the text is no number either
	}
	struct stall_error *err = parse_kinds(option, name, ret_kinds);
	return err ? err : stall_parse_ms(option, equals ? equals + 1 : text, ret_ns);
}

struct stall_error *stall_option_watch_backend(const struct stall_watch_options *options)
{
	const char *name = options->source.backend;

	if (strcmp(name, "auto") && strcmp(name, "bpf") && strcmp(name, "inproc") &&
	    strcmp(name, "poll"))
		return stall_usage("--backend \"%.40s\": waits are reported by bpf, inproc or poll",
				   name);
	return NULL;
}

struct stall_error *stall_option_poll_interval(struct stall_watch_options *options,
					       const char *text)
{
	struct stall_error *err =
		stall_parse_ms("poll-interval", text, &options->source.poll_interval_ns);

	if (err)
		return err;
	if (options->source.poll_interval_ns < MIN_POLL_NS ||
	    options->source.poll_interval_ns > MAX_POLL_NS)
		return stall_usage("--poll-interval: from 1 to 10000 ms");
	return NULL;
}

struct stall_error *stall_option_threshold(struct stall_watch_options *options, const char *text)
{
	uint32_t kinds = 0;
	uint64_t ns = 0;
	struct stall_error *err = parse_threshold("threshold", text, &kinds, &ns);

	if (err)
		return err;
	options->source.asked |= stall_watch_wait_kinds(kinds);
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		if (stall_watch_wait_kinds(kinds) & 1u << i)
			options->source.threshold_ns[i] = ns;
	return NULL;
}

struct stall_error *stall_option_capture_threshold(struct stall_serve_options *options,
						   const char *text)
{
	uint32_t kinds = 0;
	uint64_t ns = 0;
	struct stall_error *err = parse_threshold("capture-threshold", text, &kinds, &ns);

	if (!err)
		stall_trigger_rules_set(&options->rules, kinds, ns);
	return err;
}

struct stall_error *stall_option_convoy(struct stall_serve_options *options, const char *text)
{
	uint64_t count;
	struct stall_error *err = stall_parse_number("convoy", text, 2, MAX_CONVOY, &count);

	if (!err)
		options->rules.convoy = count;
	return err;
}

struct stall_error *stall_option_capture_interval(struct stall_serve_options *options,
						  const char *text)
{
	uint64_t ns;
	struct stall_error *err = stall_parse_ms("capture-interval", text, &ns);

	if (!err)
		options->rules.interval_ns = ns;
	return err;
}

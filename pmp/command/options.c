// SPDX-License-Identifier: Apache-2.0
#include "command/options.h"

#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/options_text.h"
#include "command/watch_options.h"
#include "ebpf/wait_kinds.h"
#include "lock/memory_locks.h"

#define MIN_INTERVAL_NS 10000000
#define MAX_BURST 10000

enum option_id {
	OPTION_PID = 256,
	OPTION_BACKEND,
	OPTION_ALLOW_STOP,
	OPTION_STOP_BLOCKED_READS,
	OPTION_MAX_STACK,
	OPTION_MAX_THREADS,
	OPTION_PASSES,
	OPTION_DEADLINE,
	OPTION_BURST,
	OPTION_BURST_INTERVAL,
	OPTION_NO_KERNEL_STACKS,
	OPTION_READ_STRING,
	OPTION_LAYOUT,
	OPTION_LAYOUT_OF,
	OPTION_DEBUG_DIR,
	OPTION_PACK_DIR,
	OPTION_OUTPUT,
	OPTION_FORCE_OVERWRITE,
	OPTION_FORCE,
	OPTION_CORE,
	OPTION_EXE,
	OPTION_SYSROOT,
	OPTION_RING,
	OPTION_RECORDING,
	OPTION_KIND,
	OPTION_THRESHOLD,
	OPTION_TOP,
	OPTION_EVENTS,
	OPTION_NO_UPROBES,
	OPTION_NO_ATTACH,
	OPTION_NO_TIMER,
	OPTION_POLL_INTERVAL,
	OPTION_AT_REST,
	OPTION_HISTORY,
	OPTION_INTERVAL,
	OPTION_DURATION,
	OPTION_SECONDS,
	OPTION_FOLLOW,
	OPTION_WATCH,
	OPTION_CAPTURE_THRESHOLD,
	OPTION_CONVOY,
	OPTION_CAPTURE_INTERVAL,
	OPTION_CAPTURES,
	OPTION_HELP,
};

// The commands that have an option.
#define LIVE (1u << STALL_COMMAND_SNAP | 1u << STALL_COMMAND_SERVE)
#define WAITS (1u << STALL_COMMAND_WAITS)
#define SERVE (1u << STALL_COMMAND_SERVE)
#define WATCH (WAITS | SERVE)
#define CORE (1u << STALL_COMMAND_CORE)
#define RING (1u << STALL_COMMAND_RING)
#define MEMORY (1u << STALL_COMMAND_MEMORY | 1u << STALL_COMMAND_SESSIONS)
#define RINGS (1u << STALL_COMMAND_RINGS)
#define STORAGE (1u << STALL_COMMAND_STORAGE)
#define SAVED (CORE | RING)
#define SYMBOLIZE (1u << STALL_COMMAND_SYMBOLIZE)
#define PACK (1u << STALL_COMMAND_PACK)
#define ANY ~0u

static const struct {
	struct option option;
	unsigned int commands;
} known_options[] = {
	{{"pid", required_argument, NULL, OPTION_PID}, LIVE | WAITS | RINGS | MEMORY | STORAGE},
	{{"backend", required_argument, NULL, OPTION_BACKEND}, LIVE | WAITS},
	{{"allow-stop", no_argument, NULL, OPTION_ALLOW_STOP}, LIVE},
	{{"stop-blocked-reads", no_argument, NULL, OPTION_STOP_BLOCKED_READS}, LIVE},
	{{"max-stack", required_argument, NULL, OPTION_MAX_STACK}, LIVE | SAVED},
	{{"max-threads", required_argument, NULL, OPTION_MAX_THREADS}, LIVE | SAVED},
	{{"passes", required_argument, NULL, OPTION_PASSES}, LIVE},
	{{"deadline", required_argument, NULL, OPTION_DEADLINE}, LIVE | SAVED},
	{{"burst", required_argument, NULL, OPTION_BURST}, LIVE},
	{{"burst-interval", required_argument, NULL, OPTION_BURST_INTERVAL}, LIVE},
	{{"no-kernel-stacks", no_argument, NULL, OPTION_NO_KERNEL_STACKS}, LIVE},
	{{"read-string", required_argument, NULL, OPTION_READ_STRING}, LIVE | CORE},
	{{"layout", required_argument, NULL, OPTION_LAYOUT}, LIVE | MEMORY},
	{{"layout-of", required_argument, NULL, OPTION_LAYOUT_OF}, LIVE},
	{{"debug-dir", required_argument, NULL, OPTION_DEBUG_DIR},
	 LIVE | WAITS | SAVED | SYMBOLIZE | PACK},
	{{"pack-dir", required_argument, NULL, OPTION_PACK_DIR}, LIVE | WAITS | SAVED | SYMBOLIZE},
	{{"output", required_argument, NULL, OPTION_OUTPUT},
	 1u << STALL_COMMAND_SNAP | SAVED | PACK},
	{{"force-overwrite", no_argument, NULL, OPTION_FORCE_OVERWRITE}, LIVE | SAVED | PACK},
	{{"force", no_argument, NULL, OPTION_FORCE}, LIVE | WAITS | STORAGE},
	{{"core", required_argument, NULL, OPTION_CORE}, CORE},
	{{"exe", required_argument, NULL, OPTION_EXE}, CORE},
	{{"sysroot", required_argument, NULL, OPTION_SYSROOT}, SAVED},
	{{"ring", required_argument, NULL, OPTION_RING}, LIVE | WAITS | RING | RINGS},
	{{"recording", required_argument, NULL, OPTION_RECORDING}, RINGS},
	{{"kind", required_argument, NULL, OPTION_KIND}, WATCH},
	{{"threshold", required_argument, NULL, OPTION_THRESHOLD}, WATCH | RINGS},
	{{"top", required_argument, NULL, OPTION_TOP}, WATCH},
	{{"events", no_argument, NULL, OPTION_EVENTS}, WATCH},
	{{"no-uprobes", no_argument, NULL, OPTION_NO_UPROBES}, WATCH},
	{{"no-attach", no_argument, NULL, OPTION_NO_ATTACH}, WATCH},
	{{"no-timer", no_argument, NULL, OPTION_NO_TIMER}, WATCH},
	{{"poll-interval", required_argument, NULL, OPTION_POLL_INTERVAL}, WATCH},
	{{"at-rest", no_argument, NULL, OPTION_AT_REST}, WATCH},
	{{"history", no_argument, NULL, OPTION_HISTORY}, WATCH},
	{{"interval", required_argument, NULL, OPTION_INTERVAL}, WATCH | STORAGE},
	{{"duration", required_argument, NULL, OPTION_DURATION}, WAITS},
	{{"seconds", required_argument, NULL, OPTION_SECONDS}, STORAGE},
	{{"follow", no_argument, NULL, OPTION_FOLLOW}, WATCH},
	{{"watch", no_argument, NULL, OPTION_WATCH}, SERVE},
	{{"capture-threshold", required_argument, NULL, OPTION_CAPTURE_THRESHOLD}, SERVE},
	{{"convoy", required_argument, NULL, OPTION_CONVOY}, SERVE},
	{{"capture-interval", required_argument, NULL, OPTION_CAPTURE_INTERVAL}, SERVE},
	{{"captures", required_argument, NULL, OPTION_CAPTURES}, SERVE},
	{{"help", no_argument, NULL, OPTION_HELP}, ANY},
};
#define KNOWN_OPTIONS (sizeof(known_options) / sizeof(known_options[0]))

static const char *const commands[] = {
	[STALL_COMMAND_SNAP] = "snap",	       [STALL_COMMAND_CORE] = "core",
	[STALL_COMMAND_SERVE] = "serve",       [STALL_COMMAND_SYMBOLIZE] = "symbolize",
	[STALL_COMMAND_FEATURES] = "features", [STALL_COMMAND_WAITS] = "waits",
	[STALL_COMMAND_RING] = "ring",	       [STALL_COMMAND_RINGS] = "rings",
	[STALL_COMMAND_MEMORY] = "memory",     [STALL_COMMAND_SESSIONS] = "sessions",
	[STALL_COMMAND_PACK] = "pack",	       [STALL_COMMAND_STORAGE] = "storage",
};

static struct stall_error *add_pid(struct stall_options *options, const char *text)
{
	uint64_t pid;
	struct stall_error *err = stall_parse_number("pid", text, 1, INT_MAX, &pid);

	if (err)
		return err;
	for (size_t i = 0; i < options->capture.pid_count; i++)
		if ((uint64_t)options->pids[i] == pid)
			return stall_usage("--pid %s is given twice", text);
	if (options->capture.pid_count == STALL_MAX_PIDS)
		return stall_usage("more than %d --pid", STALL_MAX_PIDS);
	options->pids[options->capture.pid_count++] = pid;
	return NULL;
}

static struct stall_error *add_string(struct stall_options *options, const char *name)
{
	if (options->capture.string_count == STALL_MAX_STRINGS)
		return stall_usage("more than %d --read-string", STALL_MAX_STRINGS);
	options->strings[options->capture.string_count++] = name;
	return NULL;
}

static struct stall_error *add_layout_of(struct stall_options *options, const char *text)
{
	if (options->capture.layout_count == STALL_MAX_LAYOUTS)
		return stall_usage("more than %d --layout-of", STALL_MAX_LAYOUTS);
	options->layouts[options->capture.layout_count++] = text;
	return stall_memory_layouts_check(text);
}

static struct stall_error *add_debug_dir(struct stall_options *options, const char *dir)
{
	if (options->debug_dir_count == STALL_MAX_DEBUG_DIRS)
		return stall_usage("more than %d --debug-dir", STALL_MAX_DEBUG_DIRS);
	if (options->command != STALL_COMMAND_SYMBOLIZE && options->debug_dir_count)
		return stall_usage("--debug-dir is given twice");
	options->debug_dirs[options->debug_dir_count++] = dir;
	options->capture.worker.debug_dir = dir;
	options->watch.worker.debug_dir = dir;
	return NULL;
}

static struct stall_error *add_pack_dir(struct stall_options *options, const char *dir)
{
	if (options->pack_dir_count == STALL_MAX_PACK_DIRS)
		return stall_usage("more than %d --pack-dir", STALL_MAX_PACK_DIRS);
	options->pack_dirs[options->pack_dir_count++] = dir;
	options->capture.worker.pack_dirs = options->watch.worker.pack_dirs = options->pack_dirs;
	options->capture.worker.pack_dir_count = options->pack_dir_count;
	options->watch.worker.pack_dir_count = options->pack_dir_count;
	return NULL;
}

static struct stall_error *add_ring(struct stall_options *options, const char *path)
{
	struct stall_rings_options *rings = &options->rings;

	options->capture.snapshot.ring = options->watch.source.ring = path;
	if (options->command != STALL_COMMAND_RINGS)
		return NULL;
	if (rings->path_count == STALL_MAX_NAMED_RINGS)
		return stall_usage("more than %d --ring", STALL_MAX_NAMED_RINGS);
	rings->paths[rings->path_count++] = path;
	return NULL;
}

static struct stall_error *set_recording(struct stall_rings_options *rings, const char *text)
{
	if (strcmp(text, "on") && strcmp(text, "off"))
		return stall_usage("--recording \"%.40s\": on or off", text);
	rings->recording = strcmp(text, "on") ? STALL_RECORDING_OFF : STALL_RECORDING_ON;
	return NULL;
}

static struct stall_error *apply_number(struct stall_options *options, int id, const char *name,
					const char *text)
{
	struct stall_snapshot_options *snapshot = &options->capture.snapshot;
	uint64_t min = 1, max, value;

	switch (id) {
	case OPTION_MAX_STACK:
		min = 1024;
		max = 64 << 20;
		break;
	case OPTION_MAX_THREADS:
		max = 1 << 22; // the kernel's PID_MAX_LIMIT
		break;
	case OPTION_PASSES:
		max = 1000;
		break;
	case OPTION_TOP:
		max = STALL_WATCH_MAX_TOP;
		break;
	case OPTION_BURST:
		max = MAX_BURST;
		break;
	default:
		max = 3600 * 1000;
		break;
	}
	struct stall_error *err = stall_parse_number(name, text, min, max, &value);
	if (err)
		return err;
	switch (id) {
	case OPTION_MAX_STACK:
		snapshot->max_stack = value;
		break;
	case OPTION_MAX_THREADS:
		snapshot->max_threads = value;
		break;
	case OPTION_PASSES:
		snapshot->passes = value;
		break;
	case OPTION_TOP:
		options->watch.top = value;
		break;
	case OPTION_BURST:
		options->burst.captures = value;
		break;
	case OPTION_BURST_INTERVAL:
		options->burst.interval_ns = value * 1000000;
		break;
	default:
		snapshot->deadline_ms = value;
		options->capture.worker.deadline_ms = value;
		options->burst.deadline_ns = (uint64_t)value * 1000000;
		break;
	}
	return NULL;
}

static struct stall_error *apply_watch(struct stall_options *options, int id, const char *value)
{
	switch (id) {
	case OPTION_KIND:
		return stall_option_kind(&options->watch, value, &options->kind_given);
	case OPTION_THRESHOLD:
		return stall_option_threshold(&options->watch, value);
	case OPTION_EVENTS:
		options->watch.events = options->serve.events = true;
		return NULL;
	case OPTION_NO_UPROBES:
		options->watch.source.uprobes = false;
		return NULL;
	case OPTION_NO_ATTACH:
		options->watch.source.no_attach = true;
		return NULL;
	case OPTION_NO_TIMER:
		options->watch.source.no_timer = true;
		return NULL;
	case OPTION_POLL_INTERVAL:
		return stall_option_poll_interval(&options->watch, value);
	case OPTION_AT_REST:
		options->watch.source.at_rest = true;
		return NULL;
	case OPTION_HISTORY:
		options->watch.history = true;
		return NULL;
	case OPTION_INTERVAL:
		if (options->command == STALL_COMMAND_STORAGE)
			return stall_parse_seconds("interval", value,
						   &options->storage.interval_ns);
		options->interval_given = true;
		return stall_parse_ms("interval", value, &options->waits.interval_ns);
	case OPTION_DURATION:
		return stall_parse_seconds("duration", value, &options->waits.duration_ns);
	case OPTION_SECONDS:
		return stall_parse_seconds("seconds", value, &options->storage.duration_ns);
	case OPTION_FOLLOW:
		options->waits.follow = options->serve.follow = true;
		return NULL;
	case OPTION_WATCH:
		options->serve.watch = true;
		return NULL;
	case OPTION_CAPTURE_THRESHOLD:
		return stall_option_capture_threshold(&options->serve, value);
	case OPTION_CONVOY:
		return stall_option_convoy(&options->serve, value);
	case OPTION_CAPTURE_INTERVAL:
		return stall_option_capture_interval(&options->serve, value);
	default:
		options->serve.captures = value;
		return NULL;
	}
}

static struct stall_error *apply(struct stall_options *options, int id, const char *name,
				 const char *value)
{
	if (id != OPTION_TOP && id >= OPTION_KIND && id <= OPTION_CAPTURES)
		return apply_watch(options, id, value);
	switch (id) {
	case OPTION_PID:
		return add_pid(options, value);
	case OPTION_BACKEND:
		options->capture.backend = options->watch.source.backend = value;
		// With waits from /proc, captures come from there, too.
		if (!strcmp(value, "poll") && options->command == STALL_COMMAND_SERVE)
			options->capture.backend = "proc";
		return NULL;
	case OPTION_ALLOW_STOP:
		options->capture.allow_stop = true;
		return NULL;
	case OPTION_STOP_BLOCKED_READS:
		options->capture.snapshot.stop_reads = true;
		return NULL;
	case OPTION_NO_KERNEL_STACKS:
		options->capture.snapshot.kernel_stacks = false;
		return NULL;
	case OPTION_READ_STRING:
		return add_string(options, value);
	case OPTION_LAYOUT:
		return stall_layout_add(&options->layout, value);
	case OPTION_LAYOUT_OF:
		return add_layout_of(options, value);
	case OPTION_DEBUG_DIR:
		return add_debug_dir(options, value);
	case OPTION_PACK_DIR:
		return add_pack_dir(options, value);
	case OPTION_OUTPUT:
		options->output = value;
		return NULL;
	case OPTION_FORCE_OVERWRITE:
		options->force_overwrite = options->serve.force_overwrite = true;
		return NULL;
	case OPTION_FORCE:
		options->capture.snapshot.force = true;
		options->watch.source.force = true;
		return NULL;
	case OPTION_CORE:
		options->core = value;
		return NULL;
	case OPTION_EXE:
		options->exe = value;
		return NULL;
	case OPTION_SYSROOT:
		options->sysroot = value;
		return NULL;
	case OPTION_RING:
		return add_ring(options, value);
	case OPTION_RECORDING:
		return set_recording(&options->rings, value);
	default:
		return apply_number(options, id, name, value);
	}
}

static struct stall_error *parse_options(struct stall_options *options, int argc, char **argv)
{
	struct option long_options[KNOWN_OPTIONS + 1] = {};
	int id, index;

	for (size_t i = 0; i < KNOWN_OPTIONS; i++)
		long_options[i] = known_options[i].option;
	// FILE may come first.
	if (options->command == STALL_COMMAND_PACK && argc > 1 && argv[1][0] != '-') {
		options->file = argv[1];
		argv[1] = argv[0];
		argv++;
		argc--;
	}
	opterr = 0;
	optind = 1;
	while ((id = getopt_long(argc, argv, "+:hp:", long_options, &index)) != -1) {
		const char *given = argv[optind - 1];
		if (id == ':')
			return stall_usage("%s: its value is missing", given);
		if (id == '?')
			return stall_usage("%s %s: unknown option", argv[0], given);
		if (id == 'h' || id == OPTION_HELP) {
			options->command = STALL_COMMAND_HELP;
			return NULL;
		}
		if (id == 'p') // the first one
			index = 0;
		if (!(known_options[index].commands & 1u << options->command))
			return stall_usage("--%s: not an option of %s",
					   known_options[index].option.name, argv[0]);
		struct stall_error *err = apply(options, known_options[index].option.val,
						known_options[index].option.name, optarg);
		if (err)
			return err;
	}
	if (options->command == STALL_COMMAND_PACK && !options->file && optind < argc)
		options->file = argv[optind++];
	if (optind < argc)
		return stall_usage("%s: unexpected argument \"%s\"", argv[0], argv[optind]);
	return NULL;
}

static struct stall_error *check(const struct stall_options *options, const char *command)
{
	unsigned int bit = 1u << options->command;

	if (bit & (LIVE | WAITS | MEMORY | STORAGE) && !options->capture.pid_count)
		return stall_usage("%s: --pid is missing", command);
	if (options->waits.interval_ns < MIN_INTERVAL_NS ||
	    (options->storage.interval_ns && options->storage.interval_ns < MIN_INTERVAL_NS))
		return stall_usage("--interval: not less than %d ms", MIN_INTERVAL_NS / 1000000);
	if (bit & WAITS) {
		struct stall_error *err = stall_option_watch_backend(&options->watch);
		if (err)
			return err;
	}
	if (bit & PACK && (!options->file || !options->output))
		return stall_usage("pack: FILE and --output are needed");
	if (bit & CORE && !options->core)
		return stall_usage("core: --core is missing");
	if (bit & RING && !options->capture.snapshot.ring)
		return stall_usage("ring: --ring is missing");
	if (bit & RINGS && options->capture.pid_count && options->rings.path_count)
		return stall_usage("rings: --pid or --ring, not both");
	if (bit & RINGS && (options->rings.recording || options->watch.source.asked) &&
	    !options->rings.path_count)
		return stall_usage("rings: --recording and --threshold need --ring");
	// The caller decides which waits are long.
	if (options->serve.captures && !stall_trigger_rules_any(&options->serve.rules))
		return stall_usage("%s: --captures needs --capture-threshold or --convoy", command);
	return NULL;
}

static struct stall_error *parse_command(const char *text, enum stall_command *ret)
{
	if (!strcmp(text, "--help") || !strcmp(text, "-h") || !strcmp(text, "help")) {
		*ret = STALL_COMMAND_HELP;
		return NULL;
	}
	if (!strcmp(text, "--version") || !strcmp(text, "-V")) {
		*ret = STALL_COMMAND_VERSION;
		return NULL;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (commands[i] && !strcmp(text, commands[i])) {
			*ret = i;
			return NULL;
		}
	}
	return stall_usage("\"%s\": unknown command", text);
}

// Takes over what it shares with snap; options for events, lines or captures switch the wait
// programs on.
static void complete_serve(struct stall_options *options)
{
	struct stall_serve_options *serve = &options->serve;

	serve->burst = options->burst;
	if (options->interval_given)
		serve->line_ns = options->waits.interval_ns;
	serve->watch |= serve->events || serve->line_ns || stall_trigger_rules_any(&serve->rules) ||
			options->watch.source.at_rest || options->watch.history;
}

struct stall_error *stall_options_init(struct stall_options *options, int argc, char **argv)
{
	struct stall_error *err;

	*options = (struct stall_options){};
	if (argc < 2)
		return stall_usage("a command is missing: snap, serve, waits, core, ring, "
				   "rings, memory, sessions, storage, symbolize, pack or features");
	err = parse_command(argv[1], &options->command);
	if (err)
		return err;
	stall_snapshot_options_init(&options->capture.snapshot);
	stall_watch_options_init(&options->watch);
	stall_waits_options_init(&options->waits);
	stall_serve_options_init(&options->serve);
	options->capture.backend = "auto";
	options->capture.worker.deadline_ms = options->capture.snapshot.deadline_ms;
	options->burst = (struct stall_burst_options){
		.captures = 1,
		.interval_ns = STALL_BURST_INTERVAL_NS,
		.deadline_ns = (uint64_t)STALL_DEFAULT_DEADLINE_MS * 1000000,
	};
	options->pids = calloc(STALL_MAX_PIDS, sizeof(*options->pids));
	if (!options->pids)
		return &stall_enomem;
	options->capture.pids = options->pids;
	options->capture.strings = options->strings;
	options->capture.layout = &options->layout;
	options->capture.layouts = options->layouts;
	if (options->command == STALL_COMMAND_HELP || options->command == STALL_COMMAND_VERSION)
		return NULL;
	err = parse_options(options, argc - 1, argv + 1);
	if (!err)
		err = check(options, argv[1]);
	if (!err)
		complete_serve(options);
	if (err)
		stall_options_deinit(options);
	return err;
}

void stall_options_deinit(struct stall_options *options)
{
	free(options->pids);
	options->pids = NULL;
	stall_layout_deinit(&options->layout);
}

// SPDX-License-Identifier: Apache-2.0
#include "command/options.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/options_text.h"
#include "command/option_table.h"
#include "command/watch_options.h"
#include "ebpf/wait_kinds.h"
#include "lock/memory_locks.h"

#define MIN_INTERVAL_NS 10000000
#define MAX_BURST 10000

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
	options->capture.worker.debug_dir = options->growth.worker.debug_dir = dir;
	options->watch.worker.debug_dir = dir;
	return NULL;
}

static struct stall_error *add_pack_dir(struct stall_options *options, const char *dir)
{
	if (options->pack_dir_count == STALL_MAX_SEARCH_DIRS)
		return stall_usage("more than %d --pack-dir", STALL_MAX_SEARCH_DIRS);
	options->pack_dirs[options->pack_dir_count++] = dir;
	options->capture.worker.pack_dirs = options->watch.worker.pack_dirs = options->pack_dirs;
	options->capture.worker.pack_dir_count = options->pack_dir_count;
	options->watch.worker.pack_dir_count = options->pack_dir_count;
	options->growth.worker.pack_dirs = options->pack_dirs;
	options->growth.worker.pack_dir_count = options->pack_dir_count;
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
	case OPTION_STACKS:
	case OPTION_FAULTS:
		min = 100;
		max = 1000000;
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
		if (value < options->growth.max_stack)
			options->growth.max_stack = value;
		break;
	case OPTION_STACKS:
		options->growth.stacks_per_second = value;
		break;
	case OPTION_FAULTS:
		options->growth.faults_per_second = value;
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
		return stall_parse_seconds("duration", value,
					   options->command == STALL_COMMAND_GROWTH
						   ? &options->growth.duration_ns
						   : &options->waits.duration_ns);
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

static struct stall_error *apply_cache(struct stall_cache_command *cache, int id, const char *name,
				       const char *value)
{
	struct stall_cache_options *scan = &cache->scan;
	struct stall_cache_plan *plan = &cache->plan;
	struct stall_error *err;
	uint64_t number;

	switch (id) {
	case OPTION_DATA_DIR:
		return stall_cache_option_dir(name, value, scan->data_dirs, &scan->data_dir_count);
	case OPTION_LOG_DIR:
		return stall_cache_option_dir(name, value, scan->log_dirs, &scan->log_dir_count);
	case OPTION_MAX_FILES:
		err = stall_parse_number(name, value, 1, 10 * 1000 * 1000, &number);
		if (!err)
			scan->max_files = number;
		return err;
	case OPTION_DEADLINE:
		return stall_parse_ms(name, value, &scan->deadline_ns);
	case OPTION_UNCACHE:
		return stall_cache_option_classes(plan, value);
	case OPTION_ALLOW_REDO:
		plan->allow_redo = true;
		return NULL;
	case OPTION_KEEP_FILES:
		return stall_cache_option_keep(plan, STALL_CACHE_KEEP_FILES, name, value);
	case OPTION_KEEP_BYTES:
		return stall_cache_option_keep(plan, STALL_CACHE_KEEP_BYTES, name, value);
	case OPTION_KEEP_SECONDS:
		return stall_cache_option_keep(plan, STALL_CACHE_KEEP_SECONDS, name, value);
	case OPTION_DUMP_THREADS:
		err = stall_parse_number(name, value, 0, INT_MAX, &number);
		if (!err)
			plan->dump_threads = number;
		return err;
	case OPTION_YES:
		cache->drop = true;
		return NULL;
	default:
		return stall_parse_seconds(name, value, &cache->after_ns);
	}
}

static struct stall_error *apply(struct stall_options *options, int id, const char *name,
				 const char *value)
{
	if (id != OPTION_TOP && id >= OPTION_KIND && id <= OPTION_CAPTURES)
		return apply_watch(options, id, value);
	if (options->command == STALL_COMMAND_CACHE && id != OPTION_PID)
		return apply_cache(&options->cache, id, name, value);
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
	struct option long_options[STALL_MAX_OPTIONS + 1] = {};
	int id, index;

	for (size_t i = 0; i < stall_known_option_count; i++)
		long_options[i] = stall_known_options[i].option;
	// FILE may come first.
	if (options->command == STALL_COMMAND_PACK && argc > 1 && argv[1][0] != '-') {
		options->file = argv[1];
		argv[1] = argv[0];
		argv++;
		argc--;
	}
	opterr = 0;
	optind = 0; // glibc: also forgets the rest of a word of a parse before
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
		if (!(stall_known_options[index].commands & 1u << options->command))
			return stall_usage("--%s: not an option of %s",
					   stall_known_options[index].option.name, argv[0]);
		struct stall_error *err = apply(options, stall_known_options[index].option.val,
						stall_known_options[index].option.name, optarg);
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

	if (bit & (LIVE | WAITS | MEMORY | STORAGE | CACHE | GROWTH) && !options->capture.pid_count)
		return stall_usage("%s: --pid is missing", command);
	if (options->waits.interval_ns < MIN_INTERVAL_NS ||
	    (options->storage.interval_ns && options->storage.interval_ns < MIN_INTERVAL_NS))
		return stall_usage("--interval: not less than %d ms", MIN_INTERVAL_NS / 1000000);
	if (bit & WAITS) {
		struct stall_error *err = stall_option_watch_backend(&options->watch);
		if (err)
			return err;
	}
	if (bit & GROWTH && options->capture.pid_count > 1)
		return stall_usage("growth: one --pid");
	if (bit & CACHE) {
		struct stall_error *err = stall_cache_command_check(&options->cache);
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
				   "rings, memory, growth, sessions, storage, cache, "
				   "symbolize, pack or features");
	err = stall_command_parse(argv[1], &options->command);
	if (err)
		return err;
	stall_snapshot_options_init(&options->capture.snapshot);
	stall_watch_options_init(&options->watch);
	stall_waits_options_init(&options->waits);
	stall_growth_options_init(&options->growth);
	stall_serve_options_init(&options->serve);
	stall_cache_command_init(&options->cache);
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
	options->growth.pid = options->pids[0];
	options->cache.scan.pids = options->pids;
	options->cache.scan.pid_count = options->capture.pid_count;
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

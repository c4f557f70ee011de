// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char stall_help[] =
	"stallscope-probe: takes the stacks of all threads of a live process\n"
	"\n"
	"Usage:\n"
	"  stallscope-probe snap --pid PID [--pid PID ...] [OPTIONS]   one capture\n"
	"  stallscope-probe serve --pid PID [--pid PID ...] [OPTIONS]  a capture for each line "
	"\"snap\",\n"
	"                                          \"snap FILE\" on standard input, until "
	"\"quit\"\n"
	"  stallscope-probe core --core FILE [--exe FILE] [--sysroot DIR] [OPTIONS]\n"
	"                                          a capture of a core file\n"
	"  stallscope-probe symbolize [--debug-dir DIR ...]  names addresses, JSON lines in and "
	"out\n"
	"  stallscope-probe features               what works on this machine, as JSON\n"
	"  stallscope-probe --version | --help\n"
	"\n"
	"RISKS: the default backend never stops a thread of the target. The backend ptrace does,\n"
	"one thread at a time, for some microseconds each; it is only used if it is named, or "
	"with\n"
	"--allow-stop. A capture holds names of functions, threads and files, no SQL text; its "
	"file\n"
	"can be read by its owner alone.\n"
	"\n"
	"Options:\n"
	"  --backend auto|bpf|proc|ptrace  auto: the first that works (default)\n"
	"  --allow-stop           auto may take a backend that stops threads\n"
	"  --stop-blocked-reads   ptrace: stop threads in calls that a stop makes return EINTR "
	"too;\n"
	"                         MySQL 5.5 drops a connection after ten of them\n"
	"  --max-stack BYTES      copied of each stack (131072)\n"
	"  --max-threads N        at most so many threads (65536)\n"
	"  --passes N             at most so many attempts to read a thread that runs (8)\n"
	"  --deadline MS          gives up what is not done by then (10000)\n"
	"  --no-kernel-stacks     leave the kernel's frames out\n"
	"  --read-string SYMBOL   text of a global variable of the target, e.g. server_version\n"
	"  --debug-dir DIR        searched for separate debug files, beside /usr/lib/debug\n"
	"  --output FILE          instead of standard output; compressed if it ends in .zst\n"
	"  --force-overwrite      replace FILE if it exists\n"
	"  --force                go on where the kernel is known to crash under such BPF "
	"programs\n"
	"\n"
	"Exit status: 0 done; 1 failed; 2 wrong usage; 3 done in part, notes in the capture say "
	"what\n"
	"is missing.\n"
	"\n"
	"Examples:\n"
	"  stallscope-probe snap --pid $(pidof mysqld) --output stall.jsonl.zst\n"
	"  stallscope-probe snap --pid $(pidof mysqld) --read-string server_version | jq .type\n"
	"  stallscope-probe snap --pid 4711 --backend ptrace --deadline 200\n"
	"  printf 'snap one.jsonl\\nquit\\n' | stallscope-probe serve --pid 4711\n"
	"  stallscope-probe core --core core.4711 --exe /usr/sbin/mysqld\n";

enum option_id {
	OPTION_PID = 256,
	OPTION_BACKEND,
	OPTION_ALLOW_STOP,
	OPTION_STOP_BLOCKED_READS,
	OPTION_MAX_STACK,
	OPTION_MAX_THREADS,
	OPTION_PASSES,
	OPTION_DEADLINE,
	OPTION_NO_KERNEL_STACKS,
	OPTION_READ_STRING,
	OPTION_DEBUG_DIR,
	OPTION_OUTPUT,
	OPTION_FORCE_OVERWRITE,
	OPTION_FORCE,
	OPTION_CORE,
	OPTION_EXE,
	OPTION_SYSROOT,
	OPTION_HELP,
};

// Which commands know an option.
#define LIVE (1u << STALL_COMMAND_SNAP | 1u << STALL_COMMAND_SERVE)
#define CORE (1u << STALL_COMMAND_CORE)
#define SYMBOLIZE (1u << STALL_COMMAND_SYMBOLIZE)
#define ANY ~0u

static const struct {
	struct option option;
	unsigned int commands;
} known_options[] = {
	{{"pid", required_argument, NULL, OPTION_PID}, LIVE},
	{{"backend", required_argument, NULL, OPTION_BACKEND}, LIVE},
	{{"allow-stop", no_argument, NULL, OPTION_ALLOW_STOP}, LIVE},
	{{"stop-blocked-reads", no_argument, NULL, OPTION_STOP_BLOCKED_READS}, LIVE},
	{{"max-stack", required_argument, NULL, OPTION_MAX_STACK}, LIVE | CORE},
	{{"max-threads", required_argument, NULL, OPTION_MAX_THREADS}, LIVE | CORE},
	{{"passes", required_argument, NULL, OPTION_PASSES}, LIVE},
	{{"deadline", required_argument, NULL, OPTION_DEADLINE}, LIVE | CORE},
	{{"no-kernel-stacks", no_argument, NULL, OPTION_NO_KERNEL_STACKS}, LIVE},
	{{"read-string", required_argument, NULL, OPTION_READ_STRING}, LIVE | CORE},
	{{"debug-dir", required_argument, NULL, OPTION_DEBUG_DIR}, LIVE | CORE | SYMBOLIZE},
	{{"output", required_argument, NULL, OPTION_OUTPUT}, 1u << STALL_COMMAND_SNAP | CORE},
	{{"force-overwrite", no_argument, NULL, OPTION_FORCE_OVERWRITE}, LIVE | CORE},
	{{"force", no_argument, NULL, OPTION_FORCE}, LIVE},
	{{"core", required_argument, NULL, OPTION_CORE}, CORE},
	{{"exe", required_argument, NULL, OPTION_EXE}, CORE},
	{{"sysroot", required_argument, NULL, OPTION_SYSROOT}, CORE},
	{{"help", no_argument, NULL, OPTION_HELP}, ANY},
};
#define KNOWN_OPTIONS (sizeof(known_options) / sizeof(known_options[0]))

static const char *const commands[] = {
	[STALL_COMMAND_SNAP] = "snap",	       [STALL_COMMAND_CORE] = "core",
	[STALL_COMMAND_SERVE] = "serve",       [STALL_COMMAND_SYMBOLIZE] = "symbolize",
	[STALL_COMMAND_FEATURES] = "features",
};

static struct stall_error *usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

static struct stall_error *usage(const char *format, ...)
{
	char message[512];
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	return stall_error_create(STALL_ERROR_USAGE, "%s; see stallscope-probe --help", message);
}

static struct stall_error *parse_number(const char *name, const char *text, uint64_t min,
					uint64_t max, uint64_t *ret)
{
	char *rest;

	errno = 0;
	unsigned long long value = strtoull(text, &rest, 10);
	if (errno || *rest || text[0] < '0' || text[0] > '9' || value < min || value > max)
		return usage("--%s \"%s\": not a number from %" PRIu64 " to %" PRIu64, name, text,
			     min, max);
	*ret = value;
	return NULL;
}

static struct stall_error *add_pid(struct stall_options *options, const char *text)
{
	uint64_t pid;
	struct stall_error *err = parse_number("pid", text, 1, INT_MAX, &pid);

	if (err)
		return err;
	for (size_t i = 0; i < options->probe.pid_count; i++)
		if ((uint64_t)options->pids[i] == pid)
			return usage("--pid %s is given twice", text);
	if (options->probe.pid_count == STALL_MAX_PIDS)
		return usage("more than %d --pid", STALL_MAX_PIDS);
	options->pids[options->probe.pid_count++] = pid;
	return NULL;
}

static struct stall_error *add_string(struct stall_options *options, const char *name)
{
	if (options->probe.string_count == STALL_MAX_STRINGS)
		return usage("more than %d --read-string", STALL_MAX_STRINGS);
	options->strings[options->probe.string_count++] = name;
	return NULL;
}

static struct stall_error *add_debug_dir(struct stall_options *options, const char *dir)
{
	if (options->debug_dir_count == STALL_MAX_DEBUG_DIRS)
		return usage("more than %d --debug-dir", STALL_MAX_DEBUG_DIRS);
	if (options->command != STALL_COMMAND_SYMBOLIZE && options->debug_dir_count)
		return usage("--debug-dir is given twice");
	options->debug_dirs[options->debug_dir_count++] = dir;
	options->probe.worker.debug_dir = dir;
	return NULL;
}

static struct stall_error *apply_number(struct stall_options *options, int id, const char *name,
					const char *text)
{
	struct stall_snapshot_options *snapshot = &options->probe.snapshot;
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
	default:
		max = 3600 * 1000;
		break;
	}
	struct stall_error *err = parse_number(name, text, min, max, &value);
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
	default:
		snapshot->deadline_ms = value;
		options->probe.worker.deadline_ms = value;
		break;
	}
	return NULL;
}

static struct stall_error *apply(struct stall_options *options, int id, const char *name,
				 const char *value)
{
	switch (id) {
	case OPTION_PID:
		return add_pid(options, value);
	case OPTION_BACKEND:
		options->probe.backend = value;
		return NULL;
	case OPTION_ALLOW_STOP:
		options->probe.allow_stop = true;
		return NULL;
	case OPTION_STOP_BLOCKED_READS:
		options->probe.snapshot.stop_reads = true;
		return NULL;
	case OPTION_NO_KERNEL_STACKS:
		options->probe.snapshot.kernel_stacks = false;
		return NULL;
	case OPTION_READ_STRING:
		return add_string(options, value);
	case OPTION_DEBUG_DIR:
		return add_debug_dir(options, value);
	case OPTION_OUTPUT:
		options->output = value;
		return NULL;
	case OPTION_FORCE_OVERWRITE:
		options->force_overwrite = true;
		return NULL;
	case OPTION_FORCE:
		options->probe.snapshot.force = true;
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
	opterr = 0;
	optind = 1;
	while ((id = getopt_long(argc, argv, "+:h", long_options, &index)) != -1) {
		const char *given = argv[optind - 1];
		if (id == ':')
			return usage("%s: its value is missing", given);
		if (id == '?')
			return usage("%s %s: unknown option", argv[0], given);
		if (id == 'h' || id == OPTION_HELP) {
			options->command = STALL_COMMAND_HELP;
			return NULL;
		}
		if (!(known_options[index].commands & 1u << options->command))
			return usage("--%s: not an option of %s", known_options[index].option.name,
				     argv[0]);
		struct stall_error *err =
			apply(options, id, known_options[index].option.name, optarg);
		if (err)
			return err;
	}
	if (optind < argc)
		return usage("%s: unexpected argument \"%s\"", argv[0], argv[optind]);
	return NULL;
}

static struct stall_error *check(const struct stall_options *options, const char *command)
{
	unsigned int bit = 1u << options->command;

	if (bit & LIVE && !options->probe.pid_count)
		return usage("%s: --pid is missing", command);
	if (bit & CORE && !options->core)
		return usage("core: --core is missing");
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
	return usage("\"%s\": unknown command", text);
}

struct stall_error *stall_options_init(struct stall_options *options, int argc, char **argv)
{
	struct stall_error *err;

	*options = (struct stall_options){};
	if (argc < 2)
		return usage("a command is missing: snap, serve, core, symbolize or features");
	err = parse_command(argv[1], &options->command);
	if (err)
		return err;
	stall_snapshot_options_init(&options->probe.snapshot);
	options->probe.backend = "auto";
	options->probe.worker.deadline_ms = options->probe.snapshot.deadline_ms;
	options->pids = calloc(STALL_MAX_PIDS, sizeof(*options->pids));
	if (!options->pids)
		return &stall_enomem;
	options->probe.pids = options->pids;
	options->probe.strings = options->strings;
	if (options->command == STALL_COMMAND_HELP || options->command == STALL_COMMAND_VERSION)
		return NULL;
	err = parse_options(options, argc - 1, argv + 1);
	if (!err)
		err = check(options, argv[1]);
	if (err)
		stall_options_deinit(options);
	return err;
}

void stall_options_deinit(struct stall_options *options)
{
	free(options->pids);
	options->pids = NULL;
}

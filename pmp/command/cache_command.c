// SPDX-License-Identifier: Apache-2.0
#include "command/cache_command.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "base/options_text.h"
#include "base/output.h"
#include "cache/cache_json.h"
#include "cache/cache_scan.h"
#include "cache/cache_uncache.h"
#include "snapshot/process_io.h"

enum option_id {
	OPTION_DATA_DIR = 256,
	OPTION_LOG_DIR,
	OPTION_MAX_FILES,
	OPTION_DEADLINE,
	OPTION_UNCACHE,
	OPTION_ALLOW_REDO,
	OPTION_KEEP_FILES,
	OPTION_KEEP_BYTES,
	OPTION_KEEP_SECONDS,
	OPTION_DUMP_THREADS,
	OPTION_YES,
	OPTION_AFTER,
};

static const struct option known[] = {
	{"pid", required_argument, NULL, 'p'},
	{"data-dir", required_argument, NULL, OPTION_DATA_DIR},
	{"log-dir", required_argument, NULL, OPTION_LOG_DIR},
	{"max-files", required_argument, NULL, OPTION_MAX_FILES},
	{"deadline", required_argument, NULL, OPTION_DEADLINE},
	{"uncache", required_argument, NULL, OPTION_UNCACHE},
	{"allow-redo", no_argument, NULL, OPTION_ALLOW_REDO},
	{"keep-files", required_argument, NULL, OPTION_KEEP_FILES},
	{"keep-bytes", required_argument, NULL, OPTION_KEEP_BYTES},
	{"keep-seconds", required_argument, NULL, OPTION_KEEP_SECONDS},
	{"dump-threads", required_argument, NULL, OPTION_DUMP_THREADS},
	{"yes", no_argument, NULL, OPTION_YES},
	{"after", required_argument, NULL, OPTION_AFTER},
	{"help", no_argument, NULL, 'h'},
	{},
};

static struct stall_error *add_pid(struct stall_cache_command *command, const char *text)
{
	uint64_t pid;
	struct stall_error *err = stall_parse_number("pid", text, 1, INT_MAX, &pid);

	if (err)
		return err;
	for (size_t i = 0; i < command->scan.pid_count; i++)
		if ((uint64_t)command->pids[i] == pid)
			return stall_usage("--pid %s is given twice", text);
	if (command->scan.pid_count == STALL_CACHE_MAX_PIDS)
		return stall_usage("more than %d --pid", STALL_CACHE_MAX_PIDS);
	command->pids[command->scan.pid_count++] = pid;
	return NULL;
}

static struct stall_error *add_dir(const char *name, const char *text, const char **dirs,
				   size_t *count)
{
	if (text[0] != '/')
		return stall_usage("--%s \"%.200s\": not an absolute path", name, text);
	if (*count == STALL_CACHE_MAX_FOLDERS)
		return stall_usage("more than %d --%s", STALL_CACHE_MAX_FOLDERS, name);
	dirs[(*count)++] = text;
	return NULL;
}

static struct stall_error *add_classes(struct stall_cache_plan *plan, const char *text)
{
	static const enum stall_file_class allowed[] = {STALL_FILE_BINLOG, STALL_FILE_RELAY,
							STALL_FILE_REDO};

	while (*text) {
		size_t length = strcspn(text, ","), i;
		const size_t count = sizeof(allowed) / sizeof(allowed[0]);

		for (i = 0; i < count; i++) {
			const char *name = stall_file_class_name(allowed[i]);
			if (strlen(name) == length && !strncmp(name, text, length))
				break;
		}
		if (i == count)
			return stall_usage("--uncache \"%.40s\": binlog, relay, redo, with commas",
					   text);
		plan->classes |= 1u << allowed[i];
		text += length + (text[length] == ',');
	}
	return plan->classes ? NULL : stall_usage("--uncache: no class is given");
}

static struct stall_error *set_keep(struct stall_cache_plan *plan, enum stall_cache_keep keep,
				    const char *name, const char *text)
{
	if (plan->keep)
		return stall_usage("--%s: --keep-files, --keep-bytes or --keep-seconds, once",
				   name);
	plan->keep = keep;
	return stall_parse_number(name, text, 0, INT64_MAX, &plan->keep_value);
}

static struct stall_error *apply(struct stall_cache_command *command, int id, const char *name,
				 const char *value)
{
	struct stall_cache_options *scan = &command->scan;
	struct stall_error *err;
	uint64_t number;

	switch (id) {
	case 'p':
		return add_pid(command, value);
	case OPTION_DATA_DIR:
		return add_dir(name, value, scan->data_dirs, &scan->data_dir_count);
	case OPTION_LOG_DIR:
		return add_dir(name, value, scan->log_dirs, &scan->log_dir_count);
	case OPTION_MAX_FILES:
		err = stall_parse_number(name, value, 1, 10 * 1000 * 1000, &number);
		if (!err)
			scan->max_files = number;
		return err;
	case OPTION_DEADLINE:
		return stall_parse_ms(name, value, &scan->deadline_ns);
	case OPTION_UNCACHE:
		return add_classes(&command->plan, value);
	case OPTION_ALLOW_REDO:
		command->plan.allow_redo = true;
		return NULL;
	case OPTION_KEEP_FILES:
		return set_keep(&command->plan, STALL_CACHE_KEEP_FILES, name, value);
	case OPTION_KEEP_BYTES:
		return set_keep(&command->plan, STALL_CACHE_KEEP_BYTES, name, value);
	case OPTION_KEEP_SECONDS:
		return set_keep(&command->plan, STALL_CACHE_KEEP_SECONDS, name, value);
	case OPTION_DUMP_THREADS:
		err = stall_parse_number(name, value, 0, INT_MAX, &number);
		if (!err)
			command->plan.dump_threads = number;
		return err;
	case OPTION_YES:
		command->drop = true;
		return NULL;
	default:
		return stall_parse_seconds(name, value, &command->after_ns);
	}
}

static struct stall_error *check(const struct stall_cache_command *command)
{
	const struct stall_cache_plan *plan = &command->plan;

	if (!command->scan.pid_count)
		return stall_usage("cache: --pid is missing");
	if (!plan->classes && (command->drop || plan->allow_redo || plan->keep))
		return stall_usage("cache: --yes, --allow-redo and --keep-* need --uncache");
	if (command->after_ns && !command->drop)
		return stall_usage("cache: --after needs --yes");
	return NULL;
}

struct stall_error *stall_cache_command_parse(struct stall_cache_command *command, int argc,
					      char **argv, bool *ret_help)
{
	int id, index = 0;

	*command = (struct stall_cache_command){
		.scan = {.max_files = STALL_CACHE_MAX_FILES,
			 .deadline_ns = 30 * UINT64_C(1000000000)},
		.plan = {.dump_threads = -1},
	};
	opterr = 0;
	optind = 1;
	while ((id = getopt_long(argc, argv, "+:hp:", known, &index)) != -1) {
		if (id == ':')
			return stall_usage("%s: its value is missing", argv[optind - 1]);
		if (id == '?')
			return stall_usage("cache %s: unknown option", argv[optind - 1]);
		if (id == 'h') {
			*ret_help = true;
			return NULL;
		}
		struct stall_error *err =
			apply(command, id, id == 'p' ? "pid" : known[index].name, optarg);
		if (err)
			return err;
	}
	if (optind < argc)
		return stall_usage("cache: unexpected argument \"%.200s\"", argv[optind]);
	command->scan.pids = command->pids;
	return check(command);
}

// Bytes that the processes had read from disks, or false.
static bool read_bytes(const struct stall_cache_scan *scan, uint64_t *ret)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < scan->target_count; i++) {
		struct stall_process_io io;

		if (!stall_process_io_read(&scan->targets[i], &io))
			return false;
		sum += io.read_bytes;
	}
	*ret = sum;
	return true;
}

static void pause_for(uint64_t ns)
{
	struct timespec left = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

static bool watch_reads(const struct stall_cache_scan *scan, uint64_t ns, uint64_t *ret)
{
	uint64_t first, last;
	bool is_known = read_bytes(scan, &first);

	pause_for(ns);
	if (!is_known || !read_bytes(scan, &last))
		return false;
	*ret = last > first ? last - first : 0;
	return true;
}

static struct stall_error *uncache(const struct stall_cache_command *command,
				   struct stall_cache_scan *scan, struct stall_cache_result *result)
{
	struct stall_cache_plan plan = command->plan;
	struct stall_cache_reads *reads = &result->reads;

	plan.now_ns = stall_clock_ns(CLOCK_REALTIME);
	reads->seconds_ns = command->after_ns;
	scan->until_ns += 2 * command->after_ns;
	reads->is_known =
		!command->after_ns || watch_reads(scan, command->after_ns, &reads->before);
	struct stall_error *err = stall_cache_uncache(scan, &plan, command->drop);
	if (err)
		return err;
	result->uncache = plan.classes;
	result->dropped = command->drop;
	if (command->after_ns) {
		reads->is_known &= watch_reads(scan, command->after_ns, &reads->after);
		stall_cache_recount(scan);
	}
	return NULL;
}

struct stall_error *stall_cache_command_run(const struct stall_cache_command *command, int out,
					    bool *ret_partial)
{
	_cleanup_(stall_cache_scan_deinit) struct stall_cache_scan scan = {};
	_cleanup_(stall_json_deinit) struct stall_json json = {};
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_cache_result result = {.scan = &scan};
	uint64_t begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_error *err = stall_cache_scan_init(&scan, &command->scan);

	result.elapsed_ns = stall_clock_ns(CLOCK_MONOTONIC) - begun_ns;
	if (!err && command->plan.classes)
		err = uncache(command, &scan, &result);
	if (err)
		return err;
	stall_cache_write(&json, &result);
	if (json.failed)
		return &stall_enomem;
	err = stall_output_create_fd(out, &output);
	if (!err)
		err = stall_output_write(output, json.data, json.size);
	if (!err)
		err = stall_output_commit(output);
	*ret_partial = stall_cache_is_partial(&scan);
	return err;
}

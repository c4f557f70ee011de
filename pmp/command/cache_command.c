// SPDX-License-Identifier: Apache-2.0
#include "command/cache_command.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file_class.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "base/options_text.h"
#include "cache/cache_json.h"
#include "cache/cache_scan.h"
#include "cache/cache_uncache.h"
#include "snapshot/process_io.h"

void stall_cache_command_init(struct stall_cache_command *command)
{
	*command = (struct stall_cache_command){
		.scan = {.max_files = STALL_CACHE_MAX_FILES,
			 .deadline_ns = 30 * UINT64_C(1000000000)},
		.plan = {.dump_threads = -1},
	};
}

struct stall_error *stall_cache_option_dir(const char *name, const char *text, const char **dirs,
					   size_t *count)
{
	if (text[0] != '/')
		return stall_usage("--%s \"%.200s\": not an absolute path", name, text);
	if (*count == STALL_CACHE_MAX_FOLDERS)
		return stall_usage("more than %d --%s", STALL_CACHE_MAX_FOLDERS, name);
	dirs[(*count)++] = text;
	return NULL;
}

struct stall_error *stall_cache_option_classes(struct stall_cache_plan *plan, const char *text)
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

struct stall_error *stall_cache_option_keep(struct stall_cache_plan *plan,
					    enum stall_cache_keep keep, const char *name,
					    const char *text)
{
	if (plan->keep)
		return stall_usage("--%s: --keep-files, --keep-bytes or --keep-seconds, once",
				   name);
	plan->keep = keep;
	return stall_parse_number(name, text, 0, INT64_MAX, &plan->keep_value);
}

struct stall_error *stall_cache_command_check(const struct stall_cache_command *command)
{
	const struct stall_cache_plan *plan = &command->plan;

	if (!plan->classes && (command->drop || plan->allow_redo || plan->keep))
		return stall_usage("cache: --yes, --allow-redo and --keep-* need --uncache");
	if (command->after_ns && !command->drop)
		return stall_usage("cache: --after needs --yes");
	return NULL;
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
	struct stall_cache_result result = {.scan = &scan};
	uint64_t begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_error *err = stall_cache_scan_init(&scan, &command->scan);

	result.elapsed_ns = stall_clock_ns(CLOCK_MONOTONIC) - begun_ns;
	if (!err && command->plan.classes)
		err = uncache(command, &scan, &result);
	if (err)
		return err;
	stall_cache_write(&json, &result);
	err = stall_lines_write(&json, out);
	*ret_partial = stall_cache_is_partial(&scan);
	return err;
}

// SPDX-License-Identifier: Apache-2.0
#include "command/option_table.h"

#include <string.h>

#include "base/options_text.h"

const struct stall_known_option stall_known_options[] = {
	{{"pid", required_argument, NULL, OPTION_PID},
	 LIVE | WAITS | RINGS | MEMORY | STORAGE | CACHE | GROWTH},
	{{"backend", required_argument, NULL, OPTION_BACKEND}, LIVE | WAITS},
	{{"allow-stop", no_argument, NULL, OPTION_ALLOW_STOP}, LIVE},
	{{"stop-blocked-reads", no_argument, NULL, OPTION_STOP_BLOCKED_READS}, LIVE},
	{{"max-stack", required_argument, NULL, OPTION_MAX_STACK}, LIVE | SAVED | GROWTH},
	{{"max-threads", required_argument, NULL, OPTION_MAX_THREADS}, LIVE | SAVED},
	{{"passes", required_argument, NULL, OPTION_PASSES}, LIVE},
	{{"deadline", required_argument, NULL, OPTION_DEADLINE}, LIVE | SAVED | CACHE},
	{{"burst", required_argument, NULL, OPTION_BURST}, LIVE},
	{{"burst-interval", required_argument, NULL, OPTION_BURST_INTERVAL}, LIVE},
	{{"no-kernel-stacks", no_argument, NULL, OPTION_NO_KERNEL_STACKS}, LIVE},
	{{"read-string", required_argument, NULL, OPTION_READ_STRING}, LIVE | CORE},
	{{"layout", required_argument, NULL, OPTION_LAYOUT}, LIVE | MEMORY},
	{{"layout-of", required_argument, NULL, OPTION_LAYOUT_OF}, LIVE},
	{{"debug-dir", required_argument, NULL, OPTION_DEBUG_DIR},
	 LIVE | WAITS | SAVED | SYMBOLIZE | PACK | GROWTH},
	{{"pack-dir", required_argument, NULL, OPTION_PACK_DIR},
	 LIVE | WAITS | SAVED | SYMBOLIZE | GROWTH},
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
	{{"seconds", required_argument, NULL, OPTION_SECONDS}, STORAGE},
	{{"duration", required_argument, NULL, OPTION_DURATION}, WAITS | GROWTH},
	{{"stacks", required_argument, NULL, OPTION_STACKS}, GROWTH},
	{{"faults", required_argument, NULL, OPTION_FAULTS}, GROWTH},
	{{"follow", no_argument, NULL, OPTION_FOLLOW}, WATCH},
	{{"watch", no_argument, NULL, OPTION_WATCH}, SERVE},
	{{"capture-threshold", required_argument, NULL, OPTION_CAPTURE_THRESHOLD}, SERVE},
	{{"convoy", required_argument, NULL, OPTION_CONVOY}, SERVE},
	{{"capture-interval", required_argument, NULL, OPTION_CAPTURE_INTERVAL}, SERVE},
	{{"captures", required_argument, NULL, OPTION_CAPTURES}, SERVE},
	{{"data-dir", required_argument, NULL, OPTION_DATA_DIR}, CACHE},
	{{"log-dir", required_argument, NULL, OPTION_LOG_DIR}, CACHE},
	{{"max-files", required_argument, NULL, OPTION_MAX_FILES}, CACHE},
	{{"uncache", required_argument, NULL, OPTION_UNCACHE}, CACHE},
	{{"allow-redo", no_argument, NULL, OPTION_ALLOW_REDO}, CACHE},
	{{"keep-files", required_argument, NULL, OPTION_KEEP_FILES}, CACHE},
	{{"keep-bytes", required_argument, NULL, OPTION_KEEP_BYTES}, CACHE},
	{{"keep-seconds", required_argument, NULL, OPTION_KEEP_SECONDS}, CACHE},
	{{"dump-threads", required_argument, NULL, OPTION_DUMP_THREADS}, CACHE},
	{{"yes", no_argument, NULL, OPTION_YES}, CACHE},
	{{"after", required_argument, NULL, OPTION_AFTER}, CACHE},
	{{"help", no_argument, NULL, OPTION_HELP}, ANY},
};
const size_t stall_known_option_count =
	sizeof(stall_known_options) / sizeof(stall_known_options[0]);

_Static_assert(sizeof(stall_known_options) / sizeof(stall_known_options[0]) <= STALL_MAX_OPTIONS,
	       "the parser has no place for them");

static const char *const commands[] = {
	[STALL_COMMAND_SNAP] = "snap",	       [STALL_COMMAND_CORE] = "core",
	[STALL_COMMAND_SERVE] = "serve",       [STALL_COMMAND_SYMBOLIZE] = "symbolize",
	[STALL_COMMAND_FEATURES] = "features", [STALL_COMMAND_WAITS] = "waits",
	[STALL_COMMAND_RING] = "ring",	       [STALL_COMMAND_RINGS] = "rings",
	[STALL_COMMAND_MEMORY] = "memory",     [STALL_COMMAND_SESSIONS] = "sessions",
	[STALL_COMMAND_PACK] = "pack",	       [STALL_COMMAND_STORAGE] = "storage",
	[STALL_COMMAND_CACHE] = "cache",       [STALL_COMMAND_GROWTH] = "growth",
};

struct stall_error *stall_command_parse(const char *text, enum stall_command *ret)
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

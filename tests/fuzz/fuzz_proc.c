// SPDX-License-Identifier: Apache-2.0
// The input is a file of /proc, with whatever names a process may choose; each parser gets it.
#include <stdlib.h>
#include <string.h>

#include "base/json_writer.h"
#include "capture/cmdline.h"
#include "fuzz.h"
#include "proc/maps_line.h"
#include "proc/mounts.h"
#include "proc/proc_stat.h"
#include "snapshot/proc_thread.h"
#include "sources/poll_files.h"
#include "sources/poll_process.h"
#include "sources/poll_thread.h"

static void parse_lines(const char *text, size_t size)
{
	for (size_t at = 0, length; at < size; at += length + 1) {
		const char *newline = memchr(text + at, '\n', size - at);
		struct stall_maps_line line;
		bool is_deleted;

		length = newline ? (size_t)(newline - text) - at : size - at;
		if (!stall_maps_line_parse(text + at, length, &line))
			continue;
		must(line.path >= text + at && line.path + line.path_size <= text + at + length);
		free(stall_maps_line_path(&line, &is_deleted));
	}
}

static void parse_mounts(char *text)
{
	struct stall_mount mount;
	char *save = NULL;

	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (stall_mount_parse(line, &mount))
			must(mount.root && mount.point && mount.type && mount.device);
}

// A name in a capture is one JSON string of one line, whatever its bytes are.
static void write_name(const char *text)
{
	struct stall_json json;

	stall_json_init(&json);
	stall_json_string(&json, text);
	must(!json.failed && json.size >= 2 && json.data[0] == '"');
	for (size_t i = 1; i < json.size - 1; i++) {
		must((unsigned char)json.data[i] >= ' ' && json.data[i] != '"' &&
		     json.data[i] != 0x7f);
		i += json.data[i] == '\\';
	}
	must(json.data[json.size - 1] == '"');
	stall_json_deinit(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stall_proc_syscall call;
	struct stall_cmdline cmdline = {};
	char path[STALL_PATH];
	uint64_t number;
	char *text = malloc(size + 1);

	must(text);
	memcpy(text, data, size);
	text[size] = '\0';
	struct stall_proc_stat stat;
	stall_proc_stat_parse(text, &stat);
	stall_proc_syscall_parse(text, &call);
	stall_poll_parse_runs(text, &number);
	stall_poll_parse_transfers(text, &number);
	stall_poll_path_cut(text, path);
	must(memchr(path, '\0', sizeof(path)));
	stall_error_destroy(stall_cmdline_parse(text, size, &cmdline));
	stall_cmdline_deinit(&cmdline);
	parse_lines(text, size);
	write_name(text);
	parse_mounts(text);
	free(text);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
// The input is a file of /proc, with whatever names a process may choose; each parser gets it.
#include <stdlib.h>
#include <string.h>

#include "capture/cmdline.h"
#include "snapshot/maps.h"
#include "snapshot/proc_thread.h"
#include "sources/poll_files.h"
#include "sources/poll_process.h"
#include "sources/poll_thread.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
	if (!condition)
		abort();
}

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
	struct stall_poll_mounts mounts = {};

	if (!stall_poll_mounts_parse(&mounts, text))
		must(!mounts.count || mounts.mounts);
	stall_poll_mounts_deinit(&mounts);
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
	stall_proc_syscall_parse(text, &call);
	stall_poll_parse_runs(text, &number);
	stall_poll_parse_transfers(text, &number);
	stall_poll_parse_image(text, &number);
	stall_poll_path_cut(text, path);
	must(memchr(path, '\0', sizeof(path)));
	stall_error_destroy(stall_cmdline_parse(text, size, &cmdline));
	stall_cmdline_deinit(&cmdline);
	parse_lines(text, size);
	parse_mounts(text);
	free(text);
	return 0;
}

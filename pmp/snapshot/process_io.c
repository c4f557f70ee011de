// SPDX-License-Identifier: Apache-2.0
#include "snapshot/process_io.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proc/proc_file.h"

static bool parse(const char *text, const char *name, uint64_t *ret)
{
	const char *line = strstr(text, name);

	return line && sscanf(line + strlen(name), "%" SCNu64, ret) == 1;
}

bool stall_process_io_read(const struct stall_target *target, struct stall_process_io *ret)
{
	char text[1024] = "\n";
	struct stall_process_io io;

	if (stall_proc_read(target, "io", text + 1, sizeof(text) - 1) <= 0)
		return false;
	if (!parse(text, "\nwchar: ", &io.wchar) || !parse(text, "\nsyscw: ", &io.syscw) ||
	    !parse(text, "\nread_bytes: ", &io.read_bytes) ||
	    !parse(text, "\nwrite_bytes: ", &io.write_bytes) ||
	    !parse(text, "\ncancelled_write_bytes: ", &io.cancelled_write_bytes))
		return false;
	*ret = io;
	return true;
}

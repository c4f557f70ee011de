// SPDX-License-Identifier: Apache-2.0
#include "proc/proc_stat.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

bool stall_proc_read_of_child(pid_t pid, const char *name, char *ret, size_t size)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);
	if (n < 0)
		return false;
	ret[n] = '\0';
	return true;
}

bool stall_proc_stat_of_child(pid_t pid, struct stall_proc_stat *ret)
{
	char text[1024];

	return stall_proc_read_of_child(pid, "stat", text, sizeof(text)) &&
	       stall_proc_stat_parse(text, ret);
}

// The name may hold blanks and parentheses, so fields are counted from the last ')'. (Linux
// man-pages, proc_pid_stat(5).)
bool stall_proc_stat_parse(const char *text, struct stall_proc_stat *ret)
{
	const char *name = strchr(text, '('), *end = strrchr(text, ')');
	struct stall_proc_stat fields = {};

	if (!name || !end || end < name)
		return false;
	size_t length = (size_t)(end - name - 1);
	if (length >= sizeof(fields.comm))
		length = sizeof(fields.comm) - 1;
	memcpy(fields.comm, name + 1, length);
	// 3 state, 4 ppid, 9 flags, 20 num_threads, 22 starttime, 26 startcode, 28 startstack, 47 start_brk
	int got = sscanf(end + 1,
			 " %c %d %*s %*s %*s %*s %" SCNu64 " %*s %*s %*s"
			 " %*s %*s %*s %*s %*s %*s %*s %" SCNd64 " %*s %" SCNu64
			 " %*s %*s %*s %" SCNu64 " %*s %" SCNu64
			 " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			 "%*s %" SCNu64,
			 &fields.state, &fields.ppid, &fields.flags, &fields.threads,
			 &fields.start_time, &fields.start_code, &fields.start_stack,
			 &fields.start_brk);
	if (got < 5)
		return false;
	*ret = fields;
	return true;
}

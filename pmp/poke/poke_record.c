// SPDX-License-Identifier: Apache-2.0
#include "poke/poke_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_writer.h"
#include "proc/target.h"

#define MAX_RECORD (1 << 20) // bytes that are read
#define EVENT "{\"event\":\""

static const char *const names[] = {
	[STALL_POKE_SUPERVISED] = "supervised",	  [STALL_POKE_WRITTEN] = "written",
	[STALL_POKE_NOT_WRITTEN] = "not-written", [STALL_POKE_UNDONE] = "undone",
	[STALL_POKE_REFUSED] = "refused",	  [STALL_POKE_ENDED] = "ended",
};

struct stall_error *stall_poke_record_open(const char *path, int *ret_fd)
{
	_cleanup_close_ int fd =
		open(path, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return stall_error_os(errno, "cannot open the undo record %s", path);
	if (fstat(fd, &st) < 0)
		return stall_error_os(errno, "the undo record %s", path);
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077 || st.st_nlink != 1)
		return stall_error_create(STALL_ERROR_PERMISSION,
					  "the undo record %s is not a file of this user alone "
					  "(0600, one name)",
					  path);
	*ret_fd = fd;
	fd = -1;
	return NULL;
}

int stall_poke_record_reopen(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_APPEND | O_CLOEXEC);
}

bool stall_poke_record_lock(int fd, unsigned int patience_ms)
{
	const struct timespec step = {.tv_nsec = 5000000};

	for (unsigned int waited = 0;; waited += 5) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return true;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return false; // a file system without locks
		if (waited >= patience_ms)
			return false;
		nanosleep(&step, NULL);
	}
}

void stall_poke_record_unlock(int fd)
{
	flock(fd, LOCK_UN);
}

static bool is_event(const char *line, const char *name)
{
	size_t length = strlen(name);

	return !strncmp(line, EVENT, strlen(EVENT)) &&
	       !strncmp(line + strlen(EVENT), name, length) && line[strlen(EVENT) + length] == '"';
}

bool stall_poke_record_is_over(int fd)
{
	_cleanup_free_ char *text = malloc(MAX_RECORD + 1);
	ssize_t size = text ? pread(fd, text, MAX_RECORD, 0) : -1;

	if (size <= 0)
		return false;
	text[size] = 0;
	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (is_event(line, names[STALL_POKE_UNDONE]) ||
		    is_event(line, names[STALL_POKE_NOT_WRITTEN]) ||
		    is_event(line, names[STALL_POKE_ENDED]))
			return true;
	}
	return false;
}

// Of this process, so that a reader knows whether it still runs.
static uint64_t own_start_time(void)
{
	struct stall_target self;
	struct stall_error *err = stall_target_init(&self, getpid());
	uint64_t start_time = err ? 0 : self.start_time;

	if (err)
		stall_error_destroy(err);
	else
		stall_target_deinit(&self);
	return start_time;
}

struct stall_error *stall_poke_record_add(int fd, enum stall_poke_event event, const char *by,
					  const char *detail)
{
	_cleanup_(stall_json_deinit) struct stall_json json;
	struct stat st;

	stall_json_init(&json);
	// A line that another process was killed in has no end.
	char last = '\n';
	if (fstat(fd, &st) == 0 && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 &&
	    last != '\n')
		stall_json_newline(&json);
	stall_json_open(&json, '{');
	stall_json_member_string(&json, "event", names[event]);
	stall_json_member_uint(&json, "at_ns", stall_clock_ns(CLOCK_REALTIME));
	stall_json_member_string(&json, "by", by);
	stall_json_member_int(&json, "pid", getpid());
	stall_json_member_uint(&json, "start_time", own_start_time());
	if (detail)
		stall_json_member_string(&json, "detail", detail);
	stall_json_close(&json, '}');
	stall_json_newline(&json);
	if (json.failed)
		return &stall_enomem;
	if (write(fd, json.data, json.size) != (ssize_t)json.size)
		return stall_error_os(errno, "cannot write to the undo record");
	if (fdatasync(fd) < 0)
		return stall_error_os(errno, "cannot sync the undo record");
	return NULL;
}

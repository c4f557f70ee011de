// SPDX-License-Identifier: Apache-2.0
#include "watch/watch_ignored.h"

#include <limits.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/options_text.h"
#include "snapshot/socket_thread.h"
#include "waits/wait_process.h"
#include "watch/watch_state.h"

#define SOCKET "socket:"

struct stall_error *stall_ignored_name_parse(const char *text, struct stall_ignored_name *ret)
{
	char pid_text[16] = "";
	size_t length = strcspn(text, " ");
	const char *which = text + length + (text[length] == ' ');
	uint64_t pid = 0, tid = 0, inode = 0;

	if (length < sizeof(pid_text))
		memcpy(pid_text, text, length);
	struct stall_error *err = stall_parse_number("PID", pid_text, 1, INT_MAX, &pid);
	if (err)
		return err;
	if (!strncmp(which, SOCKET, strlen(SOCKET)))
		err = stall_parse_number(SOCKET, which + strlen(SOCKET), 1, UINT32_MAX, &inode);
	else
		err = stall_parse_number("TID", which, 1, INT_MAX, &tid);
	if (!err)
		*ret = (struct stall_ignored_name){.pid = pid, .tid = tid, .inode = inode};
	return err;
}

struct stall_error *stall_heeded_name_parse(const char *text, struct stall_ignored_name *ret)
{
	struct stall_error *err = stall_ignored_name_parse(text, ret);

	return err || ret->tid ? err : stall_error_create(STALL_ERROR_USAGE, "say heed PID TID");
}

struct stall_error *stall_ignored_name_resolve(struct stall_ignored_name *name)
{
	struct stall_target target;

	if (name->tid)
		return NULL;
	struct stall_error *err = stall_target_init(&target, name->pid);
	if (err)
		return err;
	err = stall_socket_thread_find(&target, name->inode, &name->tid);
	stall_target_deinit(&target);
	return err;
}

struct stall_error *stall_watch_check_pid(struct stall_watch *watch, pid_t pid)
{
	const struct stall_wait_process *process =
		stall_wait_processes_find(&watch->processes, pid);

	if (process && !process->ended)
		return NULL;
	return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d is not watched", pid);
}

struct stall_error *stall_watch_ignore(struct stall_watch *watch, pid_t pid, pid_t tid, bool on)
{
	struct stall_error *err = stall_watch_check_pid(watch, pid);

	return err ? err : watch->source.calls->ignore(watch->source.state, pid, tid, on);
}

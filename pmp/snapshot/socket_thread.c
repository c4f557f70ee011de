// SPDX-License-Identifier: Apache-2.0
#include "snapshot/socket_thread.h"

#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "proc/proc_file.h"
#include "proc/read_child.h"
#include "snapshot/proc_thread.h"

#define MAX_THREADS 65536

// A thread in a system call that may wait for a client.
struct candidate {
	pid_t tid;
	struct stall_proc_syscall call;
	struct pollfd polled; // of a call that takes an array of one
};

// Servers read from a socket, or poll it and then read.
static bool may_wait_for_client(const struct stall_proc_syscall *call)
{
	switch (call->blocked ? call->number : -1) {
	case SYS_read:
	case SYS_recvfrom:
	case SYS_recvmsg:
		return true;
	case SYS_poll:
	case SYS_ppoll:
		return call->args[1] == 1;
	}
	return false;
}

static bool is_poll(const struct candidate *candidate)
{
	return candidate->call.number == SYS_poll || candidate->call.number == SYS_ppoll;
}

// Threads that end meanwhile are left out.
static struct stall_error *find_candidates(const struct stall_target *target, const pid_t *tids,
					   size_t count, struct candidate *candidates, size_t *ret)
{
	*ret = 0;
	for (size_t i = 0; i < count; i++) {
		struct candidate candidate = {.tid = tids[i], .polled = {.fd = -1}};
		struct stall_error *err =
			stall_proc_syscall_read(target, candidate.tid, &candidate.call);

		if (err && err->code != STALL_ERROR_NO_PROCESS)
			return err;
		if (!err && may_wait_for_client(&candidate.call))
			candidates[(*ret)++] = candidate;
		stall_error_destroy(err);
	}
	return NULL;
}

// What cannot be read keeps -1.
static struct stall_error *read_polled(const struct stall_target *target,
				       struct candidate *candidates, size_t count)
{
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, sizeof(*reads));
	size_t wanted = 0;

	if (!reads)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++)
		if (is_poll(&candidates[i]))
			reads[wanted++] = (struct stall_read){
				.address = candidates[i].call.args[0],
				.buf = &candidates[i].polled,
				.size = sizeof(candidates[i].polled),
			};
	return wanted ? stall_read_child_memory(target, reads, wanted) : NULL;
}

static bool is_at_socket(const struct stall_target *target, const struct candidate *candidate,
			 const char *socket)
{
	uint64_t fd = is_poll(candidate) ? (uint64_t)candidate->polled.fd : candidate->call.args[0];
	char path[48], name[64];

	if (fd > INT32_MAX)
		return false;
	snprintf(path, sizeof(path), "fd/%" PRIu64, fd);
	return stall_proc_link(target, path, name, sizeof(name)) && !strcmp(name, socket);
}

static bool is_still_there(const struct stall_target *target, const struct candidate *candidate)
{
	struct stall_proc_syscall now;
	_cleanup_error_ struct stall_error *err =
		stall_proc_syscall_read(target, candidate->tid, &now);

	return !err && stall_proc_syscall_is_same(&now, &candidate->call);
}

static struct stall_error *take_number(const struct stall_target *target, pid_t tid, pid_t *ret)
{
	struct stall_thread thread = {};
	struct stall_error *err = stall_proc_status_read(target, tid, &thread);

	if (!err)
		*ret = thread.ns_tid;
	return err;
}

struct stall_error *stall_socket_thread_find(const struct stall_target *target, uint64_t inode,
					     pid_t *ret)
{
	_cleanup_free_ pid_t *tids = NULL;
	char socket[48];
	size_t count = 0, found = 0, at = 0;
	struct stall_error *err = stall_target_tids(target, MAX_THREADS, &tids, &count);

	if (err)
		return err;
	_cleanup_free_ struct candidate *candidates = calloc(count + 1, sizeof(*candidates));
	if (!candidates)
		return &stall_enomem;
	err = find_candidates(target, tids, count, candidates, &count);
	if (!err)
		err = read_polled(target, candidates, count);
	if (err)
		return err;
	snprintf(socket, sizeof(socket), "socket:[%" PRIu64 "]", inode);
	for (size_t i = 0; i < count; i++) {
		if (!is_at_socket(target, &candidates[i], socket))
			continue;
		found++;
		at = i;
	}
	if (found != 1 || !is_still_there(target, &candidates[at]))
		return stall_error_create(STALL_ERROR_AGAIN,
					  "no single thread of process %d waits for the socket "
					  "%" PRIu64,
					  target->pid, inode);
	return take_number(target, candidates[at].tid, ret);
}

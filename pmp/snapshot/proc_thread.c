// SPDX-License-Identifier: Apache-2.0
#include "snapshot/proc_thread.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/proc_file.h"

// Reads a whole small file of a thread.
static struct stall_error *read_file(const struct stall_target *target, pid_t tid, const char *name,
				     char *text, size_t size)
{
	int errnum = stall_proc_read_thread(target, tid, name, text, size) < 0 ? errno : 0;

	if (errnum == ENOENT || errnum == ESRCH)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "thread %d has ended", tid);
	// The file's mode excludes a process with only CAP_SYS_PTRACE.
	if (errnum == EACCES || errnum == EPERM)
		return stall_error_os(errnum,
				      "cannot read /proc/%d/task/%d/%s (needs its user, or "
				      "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH)",
				      target->pid, tid, name);
	if (errnum)
		return stall_error_os(errnum, "cannot read /proc/%d/task/%d/%s", target->pid, tid,
				      name);
	return NULL;
}

bool stall_proc_syscall_parse(const char *text, struct stall_proc_syscall *ret)
{
	struct stall_proc_syscall call = {};
	uint64_t *a = call.args;

	if (!strncmp(text, "running", 7)) {
		*ret = call;
		return true;
	}
	call.blocked = true;
	if (sscanf(text, "-1 %" SCNx64 " %" SCNx64, &call.sp, &call.pc) == 2)
		call.number = -1;
	else if (sscanf(text,
			"%" SCNd64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
			" %" SCNx64 " %" SCNx64 " %" SCNx64,
			&call.number, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &call.sp,
			&call.pc) != 9)
		return false;
	*ret = call;
	return true;
}

bool stall_proc_syscall_is_same(const struct stall_proc_syscall *a,
				const struct stall_proc_syscall *b)
{
	return a->blocked == b->blocked && a->number == b->number && a->sp == b->sp &&
	       a->pc == b->pc && !memcmp(a->args, b->args, sizeof(a->args));
}

struct stall_error *stall_proc_syscall_read(const struct stall_target *target, pid_t tid,
					    struct stall_proc_syscall *ret)
{
	char text[512];
	struct stall_error *err = read_file(target, tid, "syscall", text, sizeof(text));

	if (err)
		return err;
	if (!stall_proc_syscall_parse(text, ret))
		return stall_error_create(STALL_ERROR_FORMAT,
					  "/proc/%d/task/%d/syscall is in no known format",
					  target->pid, tid);
	return NULL;
}

// The kernel writes "\n" and "\\" of a name as escapes there (proc_task_name, ESCAPE_SPECIAL).
static void take_name(const char *text, char *ret)
{
	size_t length = 0;

	memset(ret, 0, STALL_COMM);
	while (*text && *text != '\n' && length < STALL_COMM - 1) {
		if (text[0] == '\\' && text[1] == 'n') {
			ret[length++] = '\n';
			text += 2;
		} else if (text[0] == '\\' && text[1] == '\\') {
			ret[length++] = '\\';
			text += 2;
		} else {
			ret[length++] = *text++;
		}
	}
}

// The last number of "NSpid:\t123\t4": the innermost namespace.
static pid_t take_ns_tid(const char *text)
{
	pid_t tid = 0;
	char *rest;

	while (*text && *text != '\n') {
		long value = strtol(text, &rest, 10);
		if (rest == text)
			break;
		tid = (pid_t)value;
		text = rest;
	}
	return tid;
}

struct stall_error *stall_proc_status_read(const struct stall_target *target, pid_t tid,
					   struct stall_thread *thread)
{
	char text[8192];
	struct stall_error *err = read_file(target, tid, "status", text, sizeof(text));

	if (err)
		return err;
	const char *name = strncmp(text, "Name:\t", 6) ? NULL : text + 6;
	const char *state = stall_proc_field(text, "\nState:\t");
	const char *nspid = stall_proc_field(text, "\nNSpid:");
	const char *voluntary = stall_proc_field(text, "\nvoluntary_ctxt_switches:\t");
	const char *nonvoluntary = stall_proc_field(text, "\nnonvoluntary_ctxt_switches:\t");
	if (!name || !state || !voluntary || !nonvoluntary)
		return stall_error_create(STALL_ERROR_FORMAT,
					  "/proc/%d/task/%d/status is in no known format",
					  target->pid, tid);
	take_name(name, thread->comm);
	thread->state = *state;
	// Kernels before 4.1 have no NSpid.
	thread->ns_tid = nspid ? take_ns_tid(nspid) : tid;
	thread->switches = strtoull(voluntary, NULL, 10) + strtoull(nonvoluntary, NULL, 10);
	return NULL;
}

static struct stall_error *add_threads(struct stall_snapshot *snapshot, uint32_t process,
				       const struct stall_snapshot_options *options)
{
	_cleanup_free_ pid_t *tids = NULL;
	size_t count, room = options->max_threads - snapshot->thread_count;

	struct stall_error *err = stall_target_tids(&snapshot->processes[process].target,
						    STALL_MAX_TIDS, &tids, &count);
	if (err)
		return err;
	if (count > room) {
		snapshot->processes[process].threads_lost += count - room;
		count = room;
	}
	if (!stall_array_resize(&snapshot->threads, snapshot->thread_count + count))
		return &stall_enomem;
	for (size_t i = 0; i < count; i++)
		snapshot->threads[snapshot->thread_count++] = (struct stall_thread){
			.tid = tids[i],
			.ns_tid = tids[i],
			.process = process,
			.state = '?',
			.label = STALL_RACED,
		};
	snapshot->processes[process].thread_count = count;
	return NULL;
}

struct stall_error *stall_proc_list_threads(struct stall_snapshot *snapshot,
					    const struct stall_snapshot_options *options)
{
	for (uint32_t i = 0; i < snapshot->process_count; i++) {
		struct stall_error *err = add_threads(snapshot, i, options);
		if (err)
			return err;
	}
	return NULL;
}

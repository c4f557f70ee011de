// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_sample.h"

#include <errno.h>
#include <string.h>

#include "sources/poll_calls.h"
#include "waits/wait_channel.h"

#define MAX_TEXT 1024

bool stall_poll_parse_state(const char *text, char *ret)
{
	const char *rest = strrchr(text, ')'); // a name may hold anything

	if (!rest || rest[1] != ' ' || rest[2] < 'A' || rest[2] > 'z')
		return false;
	*ret = rest[2];
	return true;
}

void stall_poll_parse_channel(const char *text, char ret[STALL_CHANNEL])
{
	size_t length = stall_wait_channel_length(text);

	memset(ret, 0, STALL_CHANNEL);
	if (!strcmp(text, "0"))
		return;
	if (length >= STALL_CHANNEL)
		length = STALL_CHANNEL - 1;
	memcpy(ret, text, length);
}

static bool is_gone(int errnum)
{
	return errnum == ENOENT || errnum == ESRCH;
}

// The lock or file of a call that is a wait. The poller has found that of a wait that it has seen
// twice.
static void set_key(struct stall_poller *poller, struct stall_poll_process *process,
		    const struct stall_poll_thread *thread, const struct stall_proc_syscall *call,
		    bool is_known, struct stall_wait_key *ret)
{
	struct stall_poll_call found;
	bool is_futex;

	if (!stall_poll_is_wait(poller->calls, call, &is_futex) || (is_known && thread->unwanted))
		return;
	if (is_known && thread->slot != STALL_POLL_NO_SLOT)
		*ret = poller->slots[thread->slot].call.key;
	else if (stall_poll_call_describe(&process->target, poller->calls, poller->kinds, call,
					  &found))
		*ret = found.key;
}

// False: it has ended.
static bool read_thread(struct stall_poller *poller, struct stall_poll_process *process,
			struct stall_poll_thread *thread)
{
	struct stall_poll_doing *doing = &thread->doing;
	struct stall_proc_syscall call = {};
	char text[MAX_TEXT];
	int errnum = stall_poll_read_file(process->task, thread->tid, "syscall", &thread->call_fd,
					  NULL, text, sizeof(text));

	*doing = (struct stall_poll_doing){
		.state = 'R',
		.call = -1,
		.key = {.kind = STALL_WAIT_KINDS},
	};
	if (is_gone(errnum))
		return false;
	if (!errnum && (!stall_proc_syscall_parse(text, &call) || !call.blocked))
		return true;
	errnum = stall_poll_read_file(process->task, thread->tid, "stat", NULL, NULL, text,
				      sizeof(text));
	if (is_gone(errnum))
		return false;
	if (errnum || !stall_poll_parse_state(text, &doing->state) || doing->state == 'R' ||
	    !call.blocked)
		return true;
	bool is_known = thread->asleep && stall_proc_syscall_is_same(&call, &thread->call);
	if (!stall_code_is_64bit(call.pc, call.sp) ||
	    !stall_call_is_64bit(&poller->reader.places, &process->target, call.pc))
		call.number = -1; // it has another meaning
	if (call.number >= 0 && call.number < STALL_CALLS)
		doing->call = (int32_t)call.number;
	if (!stall_poll_read_file(process->task, thread->tid, "wchan", NULL, NULL, text,
				  sizeof(text)))
		stall_poll_parse_channel(text, doing->channel);
	set_key(poller, process, thread, &call, is_known, &doing->key);
	doing->runs = thread->runs;
	doing->is_known = is_known;
	return true;
}

static bool does_the_same(const struct stall_poll_thread *thread)
{
	return thread->asleep && thread->doing.is_known && thread->doing.runs == thread->runs;
}

static void sample_thread(struct stall_poller *poller, struct stall_poll_process *process,
			  struct stall_poll_thread *thread, stall_sample_fn take, void *arg)
{
	if (thread->ignored)
		return;
	if (!does_the_same(thread) && !read_thread(poller, process, thread))
		return;
	struct stall_thread_sample sample = {
		.tgid = process->target.pid,
		.tid = thread->tid,
		.state = thread->doing.state,
		.call = thread->doing.call,
		.key = thread->doing.key,
	};
	memcpy(sample.channel, thread->doing.channel, sizeof(sample.channel));
	take(arg, &sample);
}

void stall_poll_sample(struct stall_poller *poller, stall_sample_fn take, void *arg)
{
	for (size_t i = 0; i < poller->process_count; i++) {
		struct stall_poll_process *process = poller->processes[i];

		for (size_t j = 0; j < process->count; j++)
			sample_thread(poller, process, process->threads[j], take, arg);
	}
}

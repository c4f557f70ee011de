// SPDX-License-Identifier: Apache-2.0
// Polling /proc for waits: what its files may say, which call is which wait, and polls of a thread.
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "base/clock.h"
#include "check.h"
#include "proc/proc_stat.h"
#include "sources/poll_calls.h"
#include "sources/poll_process.h"
#include "sources/poll_sample.h"
#include "sources/poll_stats.h"
#include "sources/poller.h"
#include "target_process.h"

#define ALL_KINDS ((1U << STALL_WAIT_KINDS) - 1)
#define SP UINT64_C(0x7f0000001000)

static struct stall_call calls[STALL_CALLS];

static void test_texts(void)
{
	uint64_t value = 0;

	CHECK(stall_poll_parse_runs("123 456 789\n", &value));
	CHECK_INT(value, 789);
	CHECK(!stall_poll_parse_runs("123 456\n", &value));
	CHECK(!stall_poll_parse_runs("", &value));
	CHECK(!stall_poll_parse_runs("running", &value));
	CHECK(stall_poll_parse_transfers("rchar: 1\nwchar: 2\nsyscr: 30\nsyscw: 4\n", &value));
	CHECK_INT(value, 34);
	CHECK(!stall_poll_parse_transfers("rchar: 1\nsyscr: 30\n", &value));
	CHECK(!stall_poll_parse_transfers("", &value));
	const char *stat = "1 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 "
			   "4096 24 8192 26";
	const char *other = "1 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 "
			    "4096 24 8208 26";
	struct stall_proc_stat image, again;

	CHECK(stall_proc_stat_parse(stat, &image));
	CHECK(stall_proc_stat_parse(other, &again));
	CHECK_INT(image.start_code, again.start_code);
	CHECK(image.start_stack != again.start_stack);
	CHECK(!stall_proc_stat_parse("1 (a) S 1 2 3", &image));
	CHECK(!stall_proc_stat_parse("1 a S", &image));
	CHECK(!stall_proc_stat_parse("", &image));
}

static void test_doing_texts(void)
{
	char state = 0, channel[STALL_CHANNEL];

	CHECK(stall_poll_parse_state("1 (a) b) c) D 1 2 3", &state));
	CHECK_INT(state, 'D');
	CHECK(!stall_poll_parse_state("", &state));
	CHECK(!stall_poll_parse_state("1 (a)", &state));
	CHECK(!stall_poll_parse_state("1 (a) ", &state));
	CHECK(!stall_poll_parse_state("1 (a) \033", &state));
	stall_poll_parse_channel("futex_wait_queue", channel);
	CHECK_STRING(channel, "futex_wait_queue");
	stall_poll_parse_channel("poll_schedule_timeout.constprop.0", channel);
	CHECK_STRING(channel, "poll_schedule_timeout");
	stall_poll_parse_channel("0", channel);
	CHECK_STRING(channel, "");
	stall_poll_parse_channel("a_function_with_a_name_of_more_than_the_room_for_it", channel);
	CHECK_INT(strlen(channel), STALL_CHANNEL - 1);
}

static void test_hostile_calls(void)
{
	static const char *const bad[] = {
		"",	  "\n",		 "x",
		"202",	  "202 0x1 0x2", "-1",
		"-1 0x1", "- 1 2",	 "0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8"};
	struct stall_proc_syscall call;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(!stall_proc_syscall_parse(bad[i], &call));
	CHECK(stall_proc_syscall_parse("running\n", &call));
	CHECK(!call.blocked);
	CHECK(stall_proc_syscall_parse("-1 0x7ffc 0x5555\n", &call));
	CHECK(call.blocked && call.number == -1 && call.sp == 0x7ffc);
	CHECK(stall_proc_syscall_parse("202 0x1 0x80 0x2 0x0 0x0 0xffffffffffffffff 0x7ffc 0x55\n",
				       &call));
	CHECK(call.blocked && call.number == SYS_futex && call.args[1] == 0x80 &&
	      call.args[5] == UINT64_MAX && call.pc == 0x55);
	CHECK(stall_proc_syscall_parse("99999999999 0 0 0 0 0 0 7 8\n", &call));
	bool futex;
	CHECK(!stall_poll_is_wait(calls, &call, &futex));
}

static struct stall_proc_syscall call_of(int64_t number, uint64_t a, uint64_t b, uint64_t c,
					 uint64_t d)
{
	return (struct stall_proc_syscall){
		.blocked = true, .number = number, .args = {a, b, c, d}, .sp = SP, .pc = 1};
}

static void test_is_wait(void)
{
	static const struct {
		int64_t number;
		uint64_t operation;
		bool is_wait, is_futex;
	} cases[] = {
		{SYS_futex, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, true, true},
		{SYS_futex, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, true, true},
		{SYS_futex, FUTEX_LOCK_PI, true, true},
		{SYS_futex, FUTEX_WAKE, false, true},
		{SYS_futex, FUTEX_CMP_REQUEUE, false, true},
		{SYS_fsync, 0, true, false},
		{SYS_pwrite64, 0, true, false},
		{SYS_read, 0, true, false},
		{SYS_unlink, 0, true, false},
		{SYS_sync, 0, true, false},
		{SYS_poll, 0, false, false},
		{SYS_epoll_wait, 0, false, false},
		{SYS_io_submit, 0, false, false},
		{SYS_restart_syscall, 0, false, false},
		{-1, 0, false, false},
		{STALL_CALLS, 0, false, false},
		{INT64_MAX, 0, false, false},
		{INT64_MIN, 0, false, false},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stall_proc_syscall call =
			call_of(cases[i].number, 1, cases[i].operation, 0, 0);
		bool is_futex = false;
		CHECK_INT(stall_poll_is_wait(calls, &call, &is_futex), cases[i].is_wait);
		CHECK_INT(is_futex, cases[i].is_futex);
		call.blocked = false;
		CHECK(!stall_poll_is_wait(calls, &call, &is_futex));
		call.blocked = true;
		call.sp = 0xffffd000; // a 32-bit program
		CHECK(!stall_poll_is_wait(calls, &call, &is_futex));
	}
}

static void test_kinds(void)
{
	const struct stall_poll_file regular = {.is_known = true,
						.size = 8192,
						.mode = S_IFREG | 0600};
	const struct stall_poll_file device = {.is_known = true, .mode = S_IFCHR | 0600};
	const struct stall_poll_file remote = {};
	struct stall_proc_syscall write = call_of(SYS_pwrite64, 3, 0, 4096, 4096);

	CHECK_INT(stall_poll_kind(calls, ALL_KINDS, &write, &regular, 4096), STALL_WAIT_WRITE);
	write.args[3] = 4097;
	CHECK_INT(stall_poll_kind(calls, ALL_KINDS, &write, &regular, 4096), STALL_WAIT_EXTEND);
	CHECK_INT(stall_poll_kind(calls, ALL_KINDS & ~(1U << STALL_WAIT_EXTEND), &write, &regular,
				  4096),
		  STALL_WAIT_WRITE);
	CHECK_INT(stall_poll_kind(calls, 1U << STALL_WAIT_EXTEND, &write, &regular, 1),
		  STALL_WAIT_KINDS);
	// Of a server's disk nobody asks how long a file is.
	CHECK_INT(stall_poll_kind(calls, ALL_KINDS, &write, &remote, 4096), STALL_WAIT_WRITE);
	CHECK_INT(stall_poll_kind(calls, ALL_KINDS, &write, &device, 4096), STALL_WAIT_KINDS);
	CHECK_INT(stall_poll_kind(calls, ALL_KINDS, &write, NULL, 4096), STALL_WAIT_KINDS);
	const struct stall_proc_syscall sync = call_of(SYS_fsync, 3, 0, 0, 0);
	CHECK_INT(stall_poll_kind(calls, ALL_KINDS, &sync, &device, 0), STALL_WAIT_FSYNC);
	CHECK_INT(stall_poll_kind(calls, 1, &sync, &device, 0), STALL_WAIT_KINDS);
}

static void test_paths(void)
{
	char cut[STALL_PATH], path[2 * STALL_PATH];

	stall_poll_path_cut("/a/b", cut);
	CHECK_STRING(cut, "/a/b");
	memset(path, 'x', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	path[0] = '/';
	memcpy(path + sizeof(path) - 5, "/end", 5);
	stall_poll_path_cut(path, cut);
	CHECK_STRING(cut, ".../end");
	memset(path, 'x', sizeof(path) - 1);
	path[0] = '/';
	stall_poll_path_cut(path, cut);
	CHECK_STRING(cut, ".../");
	memset(path, '/', sizeof(path) - 1);
	stall_poll_path_cut(path, cut);
	CHECK(strlen(cut) < STALL_PATH && !strncmp(cut, "...//", 5));
}

static void test_stats(void)
{
	struct stall_poll_stats *stats;
	struct stall_wait_key key = {.tgid = 7, .kind = STALL_WAIT_FSYNC};
	bool full = false;
	size_t taken = 0;

	CHECK_OK(stall_poll_stats_create(&stats));
	for (key.id = 1; !full && key.id < 100000; key.id++) {
		uint32_t index = stall_poll_stats_take(stats, &key, &full);
		struct stall_wait_stat *stat = stall_poll_stats_at(stats, index);
		stall_poll_stat_add(stat, 1000, 0, false, 1);
		taken += !full;
		if (!full)
			CHECK(stall_poll_stats_take(stats, &key, &full) == index && !full);
	}
	// What finds no room is counted under its kind.
	CHECK(full && taken > 1000);
	struct stall_wait_stat *last =
		stall_poll_stats_at(stats, stall_poll_stats_count(stats) - STALL_WAIT_KINDS +
						   STALL_WAIT_FSYNC);
	CHECK(last->used && !last->key.tgid && last->bucket[9] == 1);
	key.id = 1;
	struct stall_wait_stat *first = stall_poll_stats_find(stats, &key);
	CHECK(first && first->bucket[9] == 1 && first->total_ns == 1000);
	stall_poll_stat_add(first, UINT64_MAX, 5, true, 9);
	CHECK(first->bucket[STALL_WAIT_BUCKETS - 1] == 1 && first->over == 1 && first->bytes == 5);
	stall_poll_stat_add(first, 0, 0, false, 9);
	CHECK_INT(first->bucket[0], 1);
	stall_poll_stats_free(stats, first - stall_poll_stats_at(stats, 0));
	CHECK(!stall_poll_stats_find(stats, &key));
	stall_poll_stats_destroy(stats);
}

// This test's own descriptors, as those of any process.
static void test_describe(void)
{
	struct stall_target self;
	struct stall_poll_call found;
	static char path[] = "/no/such/file";
	char name[] = "/tmp/test-poll-XXXXXX";
	struct stat status;
	int pipes[2];

	CHECK_OK(stall_target_init(&self, getpid()));
	int fd = mkstemp(name);
	CHECK(fd >= 0 && !ftruncate(fd, 100) && !fstat(fd, &status) && !pipe(pipes));
	struct stall_proc_syscall call = call_of(SYS_fsync, fd, 0, 0, 0);
	CHECK(stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
	CHECK_INT(found.key.kind, STALL_WAIT_FSYNC);
	CHECK_STRING(found.path, name);
	if (found.fd >= 0) { // on a file system that is asked
		CHECK_INT(found.key.id, status.st_ino);
		CHECK_INT(found.key.id2 >> 32,
			  (uint64_t)major(status.st_dev) << 20 | minor(status.st_dev));
		call = call_of(SYS_pwrite64, fd, 0, 10, 91);
		CHECK(stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
		CHECK_INT(found.key.kind, STALL_WAIT_EXTEND);
		CHECK_INT(found.value, 91);
		CHECK_INT(found.size, 10);
	}
	call = call_of(SYS_read, pipes[0], 0, 10, 0);
	CHECK(!stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
	call = call_of(SYS_fsync, 1 << 20, 0, 0, 0);
	CHECK(!stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
	call = call_of(SYS_fsync, UINT64_MAX, 0, 0, 0);
	CHECK(!stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
	call = call_of(SYS_unlink, (uintptr_t)path, 0, 0, 0);
	CHECK(stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
	CHECK_STRING(found.path, path);
	CHECK(found.key.id && !found.key.id2 && found.fd == -1);
	call = call_of(SYS_renameat2, 0, (uintptr_t)path, 0, 0);
	CHECK(stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
	CHECK_INT(found.key.kind, STALL_WAIT_RENAME);
	for (uint64_t bad = 0; bad < 3; bad++) { // addresses of nothing
		static const uint64_t addresses[] = {0, UINT64_MAX, UINT64_C(0xffff800000000000)};
		call = call_of(SYS_unlink, addresses[bad], 0, 0, 0);
		CHECK(!stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
		call = call_of(449, addresses[bad], 1, 0, 0); // futex_waitv
		CHECK(!stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found));
		call = call_of(SYS_writev, fd, addresses[bad], UINT64_MAX, 0);
		stall_poll_call_describe(&self, calls, ALL_KINDS, &call, &found);
	}
	unlink(name);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
	stall_target_deinit(&self);
}

static void keep(void *arg, struct stall_poll_thread *thread)
{
	++*(size_t *)arg;
}

// The main thread of a target sleeps in read(2), until it is asked something.
static void test_polls(void)
{
	static const char *const argv[] = {"threads", "4", "6", NULL};
	struct stall_poll_reader reader = {.calls = calls, .runs_left = 2};
	struct stall_poll_process *process = NULL;
	struct target_process target = {};
	size_t over = 0, gone = 0;

	CHECK(target_start(&target, argv));
	CHECK(target_wait_reading(target.pid));
	CHECK_OK(stall_poll_process_create(&reader, target.pid, 1, &over, &process));
	CHECK_INT(process->count, 1);
	CHECK(over > 0);
	CHECK_OK(stall_poll_process_list(&reader, process, 100, keep, &gone, &over));
	CHECK_INT(over, 0);
	CHECK(process->count > 1 && !gone);
	CHECK(!stall_poll_process_is_stale(process));
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < process->count; i++) {
			struct stall_poll_thread *thread = process->threads[i];
			enum stall_poll_result result =
				stall_poll_thread_read(&reader, &process->target, process->task,
						       thread);
			if (thread->tid != target.pid)
				continue;
			// It has not run, so it is in the call that it was in.
			CHECK_INT(result, round ? STALL_POLL_SAME : STALL_POLL_OTHER);
			CHECK(thread->in_wait && !thread->is_futex &&
			      thread->call.number == SYS_read);
			CHECK(stall_poll_thread_is_same(&reader, &process->target, process->task,
							thread));
		}
	}
	CHECK_INT(reader.runs_left, 0); // no more than may be kept
	stall_poll_process_check(process, 1);
	CHECK(!process->replaced);
	target_stop(&target);
	struct stall_poll_thread *first = process->threads[0];
	CHECK_INT(stall_poll_thread_read(&reader, &process->target, process->task, first),
		  STALL_POLL_GONE);
	CHECK(!stall_poll_thread_is_same(&reader, &process->target, process->task, first));
	stall_poll_process_destroy(&reader, process);
	CHECK_INT(reader.runs_left, 2);
}

/* A poller at rest. */

static uint32_t word = 7;

// A process whose only thread waits for a word, which nobody will wake.
static pid_t start_waiter(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, NULL, NULL, 0);
	}
	return pid;
}

struct taken {
	size_t count;
	struct stall_thread_sample last;
};

static void take_sample(void *arg, const struct stall_thread_sample *sample)
{
	struct taken *taken = arg;

	taken->count++;
	taken->last = *sample;
}

static struct taken sample(struct stall_poller *poller)
{
	struct taken taken = {};

	stall_poller_lock(poller);
	stall_poll_sample(poller, take_sample, &taken);
	stall_poller_unlock(poller);
	return taken;
}

static struct stall_wait_rest report(struct stall_poller *poller)
{
	struct stall_wait_rest rest;

	stall_poller_lock(poller);
	stall_resting_report(&poller->resting, &rest);
	stall_poller_unlock(poller);
	return rest;
}

static void check_samples(struct stall_poller *poller, pid_t pid)
{
	struct taken taken = sample(poller);

	CHECK_INT(taken.count, 1);
	CHECK(taken.last.tgid == pid && taken.last.tid == pid);
	CHECK_INT(taken.last.state, 'S');
	CHECK_INT(taken.last.call, SYS_futex);
	CHECK_INT(taken.last.key.kind, STALL_WAIT_FUTEX);
	CHECK(taken.last.key.id == (uintptr_t)&word);
	// It has not run since: nothing is read again.
	stall_poller_lock(poller);
	struct stall_poll_doing *doing = &poller->processes[0]->threads[0]->doing;
	CHECK(doing->is_known);
	doing->state = 'x';
	stall_poller_unlock(poller);
	CHECK_INT(sample(poller).last.state, 'x');
	stall_poller_lock(poller);
	doing->runs++; // as if it had
	stall_poller_unlock(poller);
	CHECK_INT(sample(poller).last.state, 'S');
}

// What has ended is not in a sample.
static void check_ended(struct stall_poller *poller, pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	stall_poller_lock(poller);
	poller->processes[0]->threads[0]->doing.is_known = false;
	stall_poller_unlock(poller);
	CHECK_INT(sample(poller).count, 0);
}

// Patience is for a failure alone.
static bool arms(struct stall_poller *poller)
{
	const uint64_t end_ns = stall_clock_ns(CLOCK_MONOTONIC) + UINT64_C(60000000000);

	while (!report(poller).arms && stall_clock_ns(CLOCK_MONOTONIC) < end_ns)
		stall_poller_poll_now(poller);
	return report(poller).arms;
}

static void test_rest(void)
{
	struct stall_wait_source_options options = {.kinds = ALL_KINDS, .at_rest = true};
	struct stall_poller *poller = NULL;

	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		options.threshold_ns[i] = UINT64_C(3600000000000);
	CHECK_OK(stall_poller_create(&options, &poller));
	pid_t pid = start_waiter();
	CHECK_OK(stall_poller_add(poller, pid));
	struct stall_poll_thread *thread = poller->processes[0]->threads[0];
	while (thread->slot == STALL_POLL_NO_SLOT) // until it waits
		stall_poller_poll_now(poller);
	CHECK(report(poller).resting && !report(poller).arms);
	CHECK_INT(report(poller).threads, 1);
	CHECK(report(poller).interval_ns >= 300000000);
	check_samples(poller, pid);
	// From now on it is a long one.
	stall_poller_set_threshold(poller, STALL_WAIT_FUTEX, 1000000);
	CHECK(arms(poller));
	CHECK(!report(poller).resting);
	stall_poller_lock(poller);
	CHECK(poller->interval_ns < 20000000 || poller->cost_ns > 1000000);
	stall_poller_unlock(poller);
	check_ended(poller, pid);
	stall_poller_destroy(poller);
	// Neither where nobody asked for it, nor with an interval that somebody has asked for.
	options.poll_interval_ns = 1000000000;
	CHECK_OK(stall_poller_create(&options, &poller));
	CHECK(!poller->rests);
	stall_poller_destroy(poller);
	options = (struct stall_wait_source_options){.kinds = ALL_KINDS};
	CHECK_OK(stall_poller_create(&options, &poller));
	CHECK(!poller->rests);
	stall_poller_destroy(poller);
}

#define NANOSLEEP_32 162 // of a 64-bit call it would be sync

// A 64-bit process in a 32-bit call. 0: this kernel takes none.
static pid_t start_32bit_call(void)
{
	struct stall_proc_syscall call = {};
	struct stall_target target;
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		uint32_t *hour = mmap(NULL, sizeof(*hour) * 2, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
		long rc = NANOSLEEP_32;

		hour[0] = 3600;
		__asm__ volatile("int $0x80" : "+a"(rc) : "b"(hour), "c"(0UL) : "memory");
		_exit(1);
	}
	CHECK_OK(stall_target_init(&target, pid));
	while (call.number != NANOSLEEP_32 && waitpid(pid, NULL, WNOHANG) == 0)
		stall_error_destroy(stall_proc_syscall_read(&target, pid, &call));
	stall_target_deinit(&target);
	return call.number == NANOSLEEP_32 ? pid : 0;
}

static void test_32bit_calls(void)
{
	struct stall_wait_source_options options = {.kinds = ALL_KINDS};
	const struct stall_proc_syscall sync = call_of(NANOSLEEP_32, 0, 0, 0, 0);
	struct stall_poller *poller = NULL;
	pid_t pid = start_32bit_call();
	bool futex;

	if (!pid)
		return;
	CHECK(stall_poll_is_wait(calls, &sync, &futex));
	CHECK_OK(stall_poller_create(&options, &poller));
	CHECK_OK(stall_poller_add(poller, pid));
	for (int i = 0; i < 3; i++)
		stall_poller_poll_now(poller);
	struct taken taken = sample(poller);
	CHECK_INT(taken.count, 1);
	CHECK_INT(taken.last.state, 'S');
	CHECK_INT(taken.last.call, -1);
	CHECK_INT(taken.last.key.kind, STALL_WAIT_KINDS);
	stall_poller_lock(poller);
	CHECK(poller->processes[0]->threads[0]->asleep);
	CHECK_INT(poller->slot_high, 0);
	stall_poller_unlock(poller);
	stall_poller_destroy(poller);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

int main(void)
{
	stall_wait_calls_set(ALL_KINDS, calls);
	test_texts();
	test_doing_texts();
	test_hostile_calls();
	test_is_wait();
	test_kinds();
	test_paths();
	test_stats();
	test_describe();
	test_polls();
	test_rest();
	test_32bit_calls();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// The history of a line, byte by byte, its limits, and wait channels.
#include <stdlib.h>
#include <sys/syscall.h>

#include "check.h"
#include "waits/wait_channel.h"
#include "waits/wait_history.h"

static struct stall_wait_history *history;

static void add(char state, int32_t call, enum stall_watch_kind kind, const char *name,
		const char *channel, int count)
{
	const struct stall_history_row row = {state, call, kind, name, channel};

	while (count--)
		stall_wait_history_add(history, &row);
}

// What is written, as a string; free it.
static char *take(void)
{
	struct stall_json json;

	stall_json_init(&json);
	stall_wait_history_write(history, &json);
	CHECK(!json.failed);
	char *text = strndup(json.data, json.size);
	stall_json_deinit(&json);
	return text;
}

static void check_taken(const char *expected)
{
	char *text = take();

	CHECK_STRING(text, expected);
	free(text);
}

static size_t count_text(const char *text, const char *part)
{
	size_t count = 0;

	for (; (text = strstr(text, part)); text += strlen(part))
		count++;
	return count;
}

static void test_rows(void)
{
	char name[] = "redo";

	check_taken("[]");
	stall_wait_history_begin(history);
	add('S', SYS_ppoll, STALL_WATCH_KINDS, NULL, "do_sys_poll", 3);
	add('D', SYS_fsync, STALL_WATCH_FSYNC, name, "jbd2_log_wait_commit", 1);
	memcpy(name, "data", 4); // its text was copied
	add('D', SYS_fsync, STALL_WATCH_FSYNC, name, "jbd2_log_wait_commit", 1);
	memcpy(name, "redo", 4);
	add('D', SYS_fsync, STALL_WATCH_FSYNC, name, "jbd2_log_wait_commit", 1);
	add('R', -1, STALL_WATCH_KINDS, NULL, NULL, 1);
	add('S', 99999, STALL_WATCH_KINDS, NULL, NULL, 1);
	add('S', SYS_ppoll, STALL_WATCH_KINDS, NULL, "do_sys_poll", 2);
	CHECK_OK(stall_wait_history_end(history, 1732395600000000000));
	check_taken("[{\"time_ns\":1732395600000000000,\"threads\":10,\"rows\":["
		    "{\"count\":5,\"state\":\"S\",\"call\":\"ppoll\",\"kind\":null,\"name\":null,"
		    "\"channel\":\"do_sys_poll\"},"
		    "{\"count\":2,\"state\":\"D\",\"call\":\"fsync\",\"kind\":\"fsync\","
		    "\"name\":\"redo\",\"channel\":\"jbd2_log_wait_commit\"},"
		    "{\"count\":1,\"state\":\"D\",\"call\":\"fsync\",\"kind\":\"fsync\","
		    "\"name\":\"data\",\"channel\":\"jbd2_log_wait_commit\"},"
		    "{\"count\":1,\"state\":\"R\",\"call\":null,\"kind\":null,\"name\":null,"
		    "\"channel\":null},"
		    "{\"count\":1,\"state\":\"S\",\"call\":\"syscall_99999\",\"kind\":null,"
		    "\"name\":null,\"channel\":null}]}]");
	check_taken("[]"); // each sample once
}

// A sample without an end is dropped; no thread is a sample, too.
static void test_empty(void)
{
	stall_wait_history_begin(history);
	add('R', -1, STALL_WATCH_KINDS, NULL, NULL, 7);
	stall_wait_history_begin(history);
	CHECK_OK(stall_wait_history_end(history, 5));
	check_taken("[{\"time_ns\":5,\"threads\":0,\"rows\":[]}]");
}

// The largest rows are named, the rest is one row, and no thread is missing.
static void test_many_rows(void)
{
	char name[32];

	stall_wait_history_begin(history);
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "lock%d", i);
		add('S', SYS_futex, STALL_WATCH_MUTEX, name, "futex_wait", i == 99 ? 50 : 2);
	}
	CHECK_OK(stall_wait_history_end(history, 1));
	char *text = take();
	CHECK_INT(count_text(text, "\"count\":"), STALL_HISTORY_ROWS + 1);
	CHECK(strstr(text, "\"rows\":[{\"count\":50,\"state\":\"S\",\"call\":\"futex\","
			   "\"kind\":\"mutex\",\"name\":\"lock99\""));
	// 100 rows less 48, of 2 threads each
	CHECK(strstr(text, "{\"count\":104,\"state\":null,\"call\":null,\"kind\":null,"
			   "\"name\":null,\"channel\":null}]}]"));
	CHECK(strstr(text, "\"threads\":248,"));
	free(text);
}

// More different rows and longer names than there is room for.
static void test_limits(void)
{
	static char name[40000];
	const int threads = 20000;

	stall_wait_history_begin(history);
	for (int i = 0; i < threads; i++) {
		snprintf(name, sizeof(name), "lock%d", i);
		add('S', SYS_futex, STALL_WATCH_MUTEX, name, NULL, 1);
	}
	CHECK_OK(stall_wait_history_end(history, 1));
	char *text = take();
	snprintf(name, sizeof(name), "{\"count\":%d,\"state\":null,", threads - STALL_HISTORY_ROWS);
	CHECK(strstr(text, "\"threads\":20000,") && strstr(text, name));
	free(text);
	stall_wait_history_begin(history);
	for (int i = 0; i < 3; i++) {
		memset(name, 'a' + i, sizeof(name) - 1);
		add('S', SYS_futex, STALL_WATCH_MUTEX, name, NULL, 1);
	}
	CHECK_OK(stall_wait_history_end(history, 1));
	text = take();
	CHECK(strstr(text, "{\"count\":2,\"state\":null,"));
	free(text);
}

// No line is written: the oldest samples are dropped.
static void test_many_samples(void)
{
	for (int i = 0; i < STALL_HISTORY_SAMPLES + 30; i++) {
		stall_wait_history_begin(history);
		add('R', -1, STALL_WATCH_KINDS, NULL, NULL, 1);
		CHECK_OK(stall_wait_history_end(history, 1000 + i));
	}
	char *text = take();
	CHECK_INT(count_text(text, "\"time_ns\":"), STALL_HISTORY_SAMPLES);
	CHECK(!strncmp(text, "[{\"time_ns\":1030,", 17));
	CHECK(strstr(text, "{\"time_ns\":1149,"));
	free(text);
	check_taken("[]");
}

static void test_channels(void)
{
	static const char *const passed[] = {"schedule",
					     "__schedule",
					     "schedule_timeout",
					     "io_schedule",
					     "io_schedule_timeout",
					     "preempt_schedule_irq",
					     "schedule_hrtimeout_range",
					     "__mutex_lock.constprop.0",
					     "rwsem_down_write_slowpath",
					     "wait_for_completion"};
	static const char *const kept[] = {"futex_wait_queue",	   "do_sys_poll", "do_epoll_wait",
					   "jbd2_log_wait_commit", "pipe_read",	  "do_wait"};

	for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
		CHECK(stall_wait_channel_is_scheduler(passed[i]));
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		CHECK(!stall_wait_channel_is_scheduler(kept[i]));
	CHECK_INT(stall_wait_channel_length("poll_schedule_timeout.constprop.0"), 21);
	CHECK_INT(stall_wait_channel_length("do_wait"), 7);
	struct stall_wait_channels *channels = stall_wait_channels_create();
	const uint64_t nothing[] = {0, 1, 2};
	CHECK(channels != NULL);
	CHECK(!stall_wait_channel_find(channels, nothing, 0));
	CHECK(!stall_wait_channel_find(channels, nothing, 3));
	CHECK(!stall_wait_channel_find(channels, nothing, 3));
	stall_wait_channels_destroy(channels);
}

// The address of a function in the kernel's list; 0: it is hidden, or there is none.
static uint64_t find_function(const char *wanted)
{
	FILE *file = fopen("/proc/kallsyms", "re");
	char name[256];
	uint64_t address = 0, found = 0;

	while (file && fscanf(file, "%lx %*c %255s%*[^\n]", &address, name) == 2) {
		if (!strcmp(name, wanted)) {
			found = address;
			break;
		}
	}
	if (file)
		fclose(file);
	return found;
}

static void test_named_channels(void)
{
	const uint64_t schedule = find_function("schedule"), do_wait = find_function("do_wait");
	struct stall_wait_channels *channels = stall_wait_channels_create();

	CHECK(channels != NULL);
	if (schedule && do_wait) {
		const uint64_t frames[] = {schedule + 16, do_wait + 16, 1};
		for (int i = 0; i < 2; i++)
			CHECK_STRING(stall_wait_channel_find(channels, frames, 3), "do_wait");
		CHECK(!stall_wait_channel_find(channels, frames, 1));
	}
	stall_wait_channels_destroy(channels);
}

int main(void)
{
	CHECK_OK(stall_wait_history_create(&history));
	test_rows();
	test_empty();
	test_many_rows();
	test_limits();
	test_many_samples();
	stall_wait_history_destroy(history);
	test_channels();
	test_named_channels();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// From samples of threads to rows of the history, by a source of the test's own.
#include <stdlib.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "check.h"
#include "watch/watch_samples.h"
#include "watch/watch_slots.h"
#include "watch/watch_state.h"

#define PID 4711
#define WORD(id_)                                                                                  \
	{                                                                                          \
		.tgid = PID, .kind = STALL_WAIT_FUTEX, .id = (id_)                                 \
	}

static const struct stall_wait_key no_key = {.kind = STALL_WAIT_KINDS};
static struct stall_thread_sample samples[16];
static size_t sample_count;
static struct stall_error *sample_error;
static struct stall_wait_now waiting[2];

static struct stall_error *sample(void *state, stall_sample_fn take, void *arg)
{
	for (size_t i = 0; i < sample_count; i++)
		take(arg, &samples[i]);
	return sample_error;
}

static size_t slot_count(void *state)
{
	return 2;
}

static bool read_slot(void *state, size_t slot, struct stall_wait_now *ret)
{
	*ret = waiting[slot];
	return ret->seq;
}

static bool find_file(void *state, const struct stall_wait_key *key, struct stall_wait_file *ret)
{
	return false;
}

static uint64_t budget_ns; // no sample before

static uint64_t sample_due_ns(void *state, uint64_t wanted_ns)
{
	return wanted_ns > budget_ns ? wanted_ns : budget_ns;
}

static struct stall_wait_source_calls calls = {
	.sample = sample,
	.slot_limit = slot_count,
	.slot_count = slot_count,
	.read_slot = read_slot,
	.find_file = find_file,
};

static void add(char state, int32_t call, struct stall_wait_key key)
{
	struct stall_thread_sample *added = &samples[sample_count++];

	*added = (struct stall_thread_sample){
		.tgid = PID, .tid = PID, .state = state, .call = call, .key = key};
}

static struct stall_wait_entry *make_entry(struct stall_watch *watch, struct stall_wait_key key,
					   enum stall_watch_kind kind, const char *name)
{
	struct stall_wait_entry *entry = NULL;

	CHECK_OK(stall_wait_table_get(watch->table, &key, &entry));
	entry->kind = kind;
	entry->name = name ? strdup(name) : NULL;
	return entry;
}

// Free it.
static char *history_of(const struct stall_watch_samples *taken)
{
	struct stall_json json;

	stall_json_init(&json);
	stall_wait_history_write(stall_watch_samples_history(taken), &json);
	char *text = strndup(json.data, json.size);
	stall_json_deinit(&json);
	return text;
}

// The history after one more sample; free it.
static char *take(struct stall_watch_samples *taken)
{
	static uint64_t now_ns = 0;

	// Each is due.
	now_ns = stall_clock_ns(CLOCK_MONOTONIC) + UINT64_C(1000000000000) + 2 * now_ns;
	CHECK_OK(stall_watch_samples_take(taken, now_ns));
	CHECK(stall_watch_samples_timeout_ms(taken, now_ns) > 0);
	CHECK_INT(stall_watch_samples_timeout_ms(taken, UINT64_MAX), 0);
	return history_of(taken);
}

static void check_row(const char *text, const char *row)
{
	if (!strstr(text, row))
		fprintf(stderr, "%s\n", text);
	CHECK(strstr(text, row) != NULL);
}

static void test_rows(struct stall_watch *watch, struct stall_watch_samples *taken)
{
	const struct stall_wait_key mutex = WORD(0x1000), unknown = WORD(0x2000),
				    cond = WORD(0x3000);
	const struct stall_wait_key file = {.tgid = PID,
					    .kind = STALL_WAIT_FSYNC,
					    .id = 5,
					    .id2 = 1};
	const struct stall_wait_key other = {.tgid = PID,
					     .kind = STALL_WAIT_FSYNC,
					     .id = 6,
					     .id2 = 1};

	make_entry(watch, mutex, STALL_WATCH_MUTEX, "LOCK_open");
	make_entry(watch, cond, STALL_WATCH_COND, NULL);
	make_entry(watch, file, STALL_WATCH_FSYNC, "/data/ib_logfile0")->class = STALL_FILE_REDO;
	sample_count = 0;
	add('S', SYS_futex, mutex);
	add('S', SYS_futex, mutex);
	strcpy(samples[1].channel, "futex_wait_queue");
	add('S', SYS_futex, unknown);
	add('S', SYS_futex, cond);
	add('D', SYS_fsync, file);
	add('D', SYS_fsync, other);
	add('S', SYS_poll, no_key);
	add('R', -1, no_key);
	char *text = take(taken);
	check_row(text, "\"threads\":8,");
	check_row(text, "\"kind\":\"mutex\",\"name\":\"LOCK_open\",\"channel\":null}");
	check_row(text, "\"kind\":\"mutex\",\"name\":\"LOCK_open\","
			"\"channel\":\"futex_wait_queue\"}");
	check_row(text, "\"kind\":\"futex\",\"name\":null");
	check_row(text, "\"kind\":\"cond\",\"name\":null");
	check_row(text, "\"call\":\"fsync\",\"kind\":\"fsync\",\"name\":\"redo\"");
	check_row(text, "\"call\":\"fsync\",\"kind\":\"fsync\",\"name\":null");
	check_row(text, "\"call\":\"poll\",\"kind\":null,\"name\":null");
	check_row(text, "{\"count\":1,\"state\":\"R\",\"call\":null,\"kind\":null,\"name\":null");
	free(text);
}

// A row lock has its name while a reported wait for it is in flight, and no longer.
static void test_row_locks(struct stall_watch *watch, struct stall_watch_samples *taken)
{
	const struct stall_wait_key word = WORD(0x4000);
	const struct stall_wait_key row =
		stall_wait_key_by_name(PID, STALL_WATCH_ROW_LOCK, "`test`.`t`");

	make_entry(watch, row, STALL_WATCH_ROW_LOCK, "`test`.`t`")->by_name = true;
	make_entry(watch, word, STALL_WATCH_COND, NULL)->named = row;
	waiting[0] = (struct stall_wait_now){.key = word, .seq = 1, .reported = true};
	sample_count = 0;
	add('S', SYS_futex, word);
	char *text = take(taken);
	check_row(text, "\"kind\":\"row-lock\",\"name\":\"`test`.`t`\"");
	free(text);
	waiting[0].seq = 0;
	text = take(taken);
	check_row(text, "\"kind\":\"cond\",\"name\":null");
	free(text);
}

// A sample that fails is missing, and nothing else.
static void test_failure(struct stall_watch_samples *taken)
{
	sample_error = stall_error_create(STALL_ERROR_PERMISSION, "no");
	char *text = take(taken);
	CHECK_STRING(text, "[]");
	free(text);
	sample_error = NULL;
	text = take(taken);
	check_row(text, "\"threads\":1,");
	free(text);
}

// The source says when its budget allows the next one.
static void test_due(struct stall_watch_samples *taken)
{
	calls.sample_due_ns = sample_due_ns;
	budget_ns = UINT64_MAX - 1000000;
	CHECK_OK(stall_watch_samples_take(taken, budget_ns - 1));
	CHECK(stall_watch_samples_timeout_ms(taken, budget_ns - 1) > 0);
	char *text = history_of(taken);
	CHECK_STRING(text, "[]");
	free(text);
	CHECK_INT(stall_watch_samples_timeout_ms(taken, budget_ns), 0);
	calls.sample_due_ns = NULL;
}

static void test_interval(void)
{
	CHECK_INT(stall_watch_samples_interval_ns(0), 1000000000);
	CHECK_INT(stall_watch_samples_interval_ns(2000000), 1000000000);
	// 0.2 % of a core
	CHECK_INT(stall_watch_samples_interval_ns(40000000), UINT64_C(20000000000));
	CHECK_OK(stall_watch_samples_take(NULL, 1));
	CHECK_INT(stall_watch_samples_timeout_ms(NULL, 1), -1);
	CHECK(!stall_watch_samples_history(NULL));
}

int main(void)
{
	struct stall_watch *watch = calloc(1, sizeof(*watch));
	struct stall_watch_samples *taken = NULL;

	CHECK(watch != NULL);
	watch->source.calls = &calls;
	CHECK_OK(stall_wait_table_create(&watch->table));
	CHECK_OK(stall_watch_slots_grow(watch));
	CHECK_OK(stall_watch_samples_create(watch, &taken));
	CHECK(!taken); // not requested
	watch->options.history = true;
	CHECK_OK(stall_watch_samples_create(watch, &taken));
	CHECK(taken != NULL);
	CHECK_OK(stall_watch_samples_take(taken, 1)); // it is not due yet
	test_rows(watch, taken);
	test_row_locks(watch, taken);
	test_failure(taken);
	test_due(taken);
	test_interval();
	stall_watch_samples_destroy(taken);
	stall_wait_table_destroy(watch->table);
	free(watch->waiting.keys);
	free(watch->counted);
	free(watch);
	return check_done();
}

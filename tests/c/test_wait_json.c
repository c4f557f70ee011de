// SPDX-License-Identifier: Apache-2.0
// Lines of stallscope.waits/1, byte by byte.
#include <stdlib.h>

#include "check.h"
#include "waits/wait_json.h"

#define PID 4711

static struct stall_wait_table *table;
static struct stall_wait_stacks *stacks;

static uint32_t stack_of(const char *first, const char *second)
{
	static struct stall_module modules[] = {{.path = (char *)"/usr/sbin/mysqld"}};
	static struct stall_maps maps = {.modules = modules, .module_count = 1};
	static struct stall_process process = {.maps = &maps};
	static const struct stall_snapshot snapshot = {.processes = &process, .process_count = 1};
	struct stall_frame frames[] = {
		{.symbol = first},
		{.symbol = second},
		{.module = 0, .offset = 0x1234},
		{.module = STALL_NO_MODULE, .pc = 0x7f0000001000},
	};
	uint32_t indexes[] = {0, 1, 2, 3};
	const struct stall_unwound unwound = {.frames = frames, .frame_count = 4};
	const struct stall_stack stack = {.frames = indexes, .count = 4};
	bool full = false;

	uint32_t id = stall_wait_stacks_add(stacks, &snapshot, &unwound, &stack, &full);
	CHECK(id && !full);
	return id;
}

static struct stall_wait_entry *fill(struct stall_wait_key key, uint64_t count, int bucket)
{
	struct stall_wait_stat stat = {
		.key = key,
		.used = 1,
		.total_ns = (count << bucket) + 1,
		.over = 1,
		.bytes = 8192,
	};

	stat.bucket[bucket] = count;
	CHECK_OK(stall_wait_table_add(table, &stat, (UINT64_C(1) << bucket) + 1));
	return stall_wait_table_find(table, &key);
}

static void fill_table(void)
{
	const struct stall_wait_key word = {.tgid = PID,
					    .kind = STALL_WAIT_FUTEX,
					    .id = 0x55aa00001000};
	const struct stall_wait_key file = {.tgid = PID,
					    .kind = STALL_WAIT_EXTEND,
					    .id = 12,
					    .id2 = 1};
	struct stall_wait_use waiter = {
		.stack = stack_of("__lll_lock_wait", "open_table(THD*, \"x\")"),
		.label = STALL_VERIFIED,
		.tid = 4712,
		.comm = "mysqld",
		.count = 2,
		.total_ns = 2500000,
	};

	stall_wait_table_begin(table);
	struct stall_wait_entry *lock = fill(word, 3, 20);
	lock->kind = STALL_WATCH_MUTEX;
	lock->name = strdup("LOCK_open");
	lock->in_flight = 4;
	lock->in_flight_over = 2;
	lock->longest_ns = 12345678;
	lock->owner_tid = 4713;
	CHECK(stall_wait_uses_add(&lock->waiters, &waiter));
	waiter = (struct stall_wait_use){
		.stack = stack_of("__lll_lock_wake", "close_table"),
		.label = STALL_RACED,
		.tid = 4713,
		.comm = "0123456789abcdef", // no room for a NUL
		.count = 1,
	};
	CHECK(stall_wait_uses_add(&lock->holders, &waiter));
	struct stall_wait_entry *extended = fill(file, 1, 10);
	extended->name = strdup("/var/lib/mysql/a\x1b[2J\xff.ibd");
	extended->class = STALL_FILE_DATA;
	stall_wait_table_finish(table, 1);
}

static struct stall_wait_line make_line(const struct stall_wait_top *top)
{
	static const struct stall_wait_process process = {.pid = PID,
							  .comm = "mysqld",
							  .exe = (char *)"/usr/sbin/mysqld"};
	static const uint64_t thresholds[STALL_WAIT_KINDS] = {[STALL_WAIT_FUTEX] = 10000000};
	static const struct stall_wait_number lost[] = {{"ring-full", 0}, {"not-unwound", 7}};

	return (struct stall_wait_line){
		.wall_ns = UINT64_C(1795261984250000000),
		.length_ns = 1000000000,
		.processes = &process,
		.process_count = 1,
		.source = "bpf",
		.in_flight_by = "timer",
		.call_added_ns = 45,
		.kinds = 1u << STALL_WATCH_MUTEX | 1u << STALL_WATCH_EXTEND,
		.threshold_ns = thresholds,
		.table = table,
		.stacks = stacks,
		.top = top,
		.lost = lost,
		.lost_count = 2,
	};
}

static const char expected[] =
	"{\"type\":\"waits\",\"schema\":\"stallscope.waits/1\",\"ts\":1795261984.250000,"
	"\"seconds\":1.000000,"
	"\"targets\":[{\"pid\":4711,\"comm\":\"mysqld\",\"exe\":\"/usr/sbin/mysqld\"}],"
	"\"source\":\"bpf\",\"in_flight_by\":\"timer\",\"call_added_ns\":45,"
	"\"kinds\":{"
	"\"mutex\":{\"count\":3,\"total_ms\":3.145729,\"max_ms\":1.048577,\"over\":1,"
	"\"histogram\":[[1048576,2097151,3]],\"threshold_ms\":10.000000,\"in_flight\":2},"
	"\"fsync\":{\"count\":0,\"total_ms\":0.000000,\"max_ms\":0.000000,\"over\":0,"
	"\"histogram\":[],\"threshold_ms\":0.000000,\"in_flight\":0},"
	"\"fallocate\":{\"count\":0,\"total_ms\":0.000000,\"max_ms\":0.000000,\"over\":0,"
	"\"histogram\":[],\"threshold_ms\":0.000000,\"in_flight\":0},"
	"\"extend\":{\"count\":1,\"total_ms\":0.001025,\"max_ms\":0.001025,\"over\":1,"
	"\"bytes\":8192,\"histogram\":[[1024,2047,1]],\"threshold_ms\":0.000000,\"in_flight\":0}},"
	"\"classes\":[{\"kind\":\"extend\",\"class\":\"data\",\"count\":1,\"total_ms\":0.001025,"
	"\"max_ms\":0.001025,\"over\":1,\"bytes\":8192,\"histogram\":[[1024,2047,1]]}],"
	"\"keys\":["
	"{\"kind\":\"mutex\",\"name\":\"LOCK_open\",\"address\":\"0x55aa00001000\",\"class\":null,"
	"\"pid\":4711,\"count\":3,\"total_ms\":3.145729,\"max_ms\":1.048577,\"over\":1,"
	"\"histogram\":[[1048576,2097151,3]],\"in_flight\":4,\"longest_in_flight_ms\":12.345678,"
	"\"owner_tid\":4713,"
	"\"waiters\":[{\"count\":2,\"total_ms\":2.500000,\"frames\":[\"__lll_lock_wait\","
	"\"open_table(THD*, \\\"x\\\")\",\"mysqld+0x1234\",\"0x7f0000001000\"],"
	"\"label\":\"verified\",\"tid\":4712,\"comm\":\"mysqld\"}],"
	"\"holders\":[{\"count\":1,\"frames\":[\"__lll_lock_wake\",\"close_table\","
	"\"mysqld+0x1234\",\"0x7f0000001000\"],\"label\":\"raced\",\"tid\":4713,"
	"\"comm\":\"0123456789abcdef\"}]},"
	"{\"kind\":\"extend\",\"name\":\"/var/lib/mysql/a\\u001b[2J\xef\xbf\xbd.ibd\","
	"\"address\":null,\"class\":\"data\",\"pid\":4711,\"count\":1,\"total_ms\":0.001025,"
	"\"max_ms\":0.001025,\"over\":1,\"bytes\":8192,\"histogram\":[[1024,2047,1]],"
	"\"in_flight\":0,\"longest_in_flight_ms\":0.000000,\"owner_tid\":null,\"waiters\":[],"
	"\"holders\":[]}],"
	"\"lost\":{\"ring-full\":0,\"not-unwound\":7}}";

static void test_line(void)
{
	struct stall_json json;
	struct stall_wait_top top;

	CHECK_OK(stall_wait_top_init(&top, table, ~0u, false, 20));
	const struct stall_wait_line line = make_line(&top);
	stall_json_init(&json);
	CHECK_OK(stall_wait_line_write(&line, &json));
	stall_json_string_n(&json, "", 0); // a NUL for what follows
	json.data[json.size - 3] = '\0';
	CHECK_STRING(json.data, expected);
	stall_json_deinit(&json);
	stall_wait_top_deinit(&top);
}

// What only some lines have.
static void test_more(void)
{
	static const struct stall_wait_hits server[] = {
		{"lock_wait", 5, false},
		{"trx_weight_ge", 2, true},
	};
	static const struct stall_wait_program programs[] = {
		{"sys_enter", "raw tracepoint sys_enter", NULL},
		{"timer", "BPF timer", "this kernel has none: a scan does it"},
	};
	struct stall_json json, events;
	struct stall_wait_top top;

	CHECK_OK(stall_wait_top_init(&top, table, ~0u, true, 0));
	struct stall_wait_line line = make_line(&top);
	stall_json_init(&json);
	stall_json_init(&events);
	stall_json_open(&events, '[');
	stall_json_close(&events, ']');
	line.final = true;
	line.source = "inproc";
	line.in_flight_by = "reader";
	line.events = &events;
	line.server = server;
	line.server_count = 2;
	line.programs = programs;
	line.program_count = 2;
	CHECK_OK(stall_wait_line_write(&line, &json));
	stall_json_newline(&json);
	json.data[json.size - 1] = '\0';
	CHECK(strstr(json.data, "\"seconds\":1.000000,\"final\":true,\"targets\"") != NULL);
	CHECK(strstr(json.data, "\"source\":\"inproc\",\"in_flight_by\":\"reader\"") != NULL);
	CHECK(strstr(json.data, "\"keys\":[],\"events\":[],\"server\":{\"lock_wait\":{\"count\":5,"
				"\"event\":false},\"trx_weight_ge\":{\"count\":2,\"event\":true}}"
				",\"lost\"") != NULL);
	CHECK(strstr(json.data,
		     ",\"programs\":[{\"name\":\"sys_enter\",\"attach\":\"raw tracepoint "
		     "sys_enter\","
		     "\"ok\":true,\"why_not\":null},{\"name\":\"timer\",\"attach\":\"BPF timer\","
		     "\"ok\":false,\"why_not\":\"this kernel has none: a scan does it\"}]}") !=
	      NULL);
	stall_json_deinit(&json);
	stall_json_deinit(&events);
	stall_wait_top_deinit(&top);
}

// Those of a source that rests and samples.
static void test_rest(void)
{
	const struct stall_history_row row = {.state = 'R', .call = -1, .kind = STALL_WATCH_KINDS};
	struct stall_wait_rest rest = {.resting = true,
				       .interval_ns = 300000000,
				       .threads = 412,
				       .arms = 3};
	struct stall_wait_history *history;
	struct stall_wait_top top;
	struct stall_json json;

	CHECK_OK(stall_wait_top_init(&top, table, ~0u, true, 0));
	CHECK_OK(stall_wait_history_create(&history));
	stall_wait_history_begin(history);
	stall_wait_history_add(history, &row);
	CHECK_OK(stall_wait_history_end(history, 7));
	struct stall_wait_line line = make_line(&top);
	line.rest = &rest;
	line.history = history;
	stall_json_init(&json);
	CHECK_OK(stall_wait_line_write(&line, &json));
	stall_json_newline(&json);
	json.data[json.size - 1] = '\0';
	CHECK(strstr(json.data, ",\"rest\":{\"resting\":true,\"interval_ms\":300.000000,"
				"\"threads\":412,\"arms\":3,\"refused\":0,\"why\":null},"
				"\"kinds\"") != NULL);
	CHECK(strstr(json.data, "\"keys\":[],\"history\":[{\"time_ns\":7,\"threads\":1,"
				"\"rows\":[{\"count\":1,\"state\":\"R\",\"call\":null,"
				"\"kind\":null,\"name\":null,\"channel\":null}]}],"
				"\"lost\"") != NULL);
	stall_json_deinit(&json);
	stall_json_init(&json);
	rest.refused = 1;
	rest.why = "no memory";
	CHECK_OK(stall_wait_line_write(&line, &json));
	stall_json_newline(&json);
	json.data[json.size - 1] = '\0';
	CHECK(strstr(json.data, "\"refused\":1,\"why\":\"no memory\"}") != NULL);
	CHECK(strstr(json.data, "\"history\":[],") != NULL); // each sample is in one line
	stall_json_deinit(&json);
	stall_wait_history_destroy(history);
	stall_wait_top_deinit(&top);
}

// The same frames are one stack, with or without names.
static void test_stacks(void)
{
	size_t count;

	CHECK_INT(stack_of("a", "b"), stack_of("a", "b"));
	CHECK(stack_of("a", "b") != stack_of("b", "a"));
	const char *const *frames = stall_wait_stacks_frames(stacks, stack_of("a", "b"), &count);
	CHECK_INT(count, 4);
	CHECK_STRING(frames[1], "b");
	CHECK(!stall_wait_stacks_frames(stacks, 0, &count));
	CHECK_INT(count, 0);
	CHECK(!stall_wait_stacks_frames(stacks, 1000000, &count));
}

// Names without end: what is kept stays bounded, and what is dropped is reported.
static void test_full_stacks(void)
{
	static const struct stall_snapshot snapshot = {};
	uint32_t index = 0, last = 0;
	bool full = false;
	char name[64];

	CHECK(!stall_wait_stacks_is_full(stacks));
	for (int i = 0; i < 2 * STALL_MAX_STACKS && !full; i++) {
		struct stall_frame frame = {.symbol = name};
		const struct stall_unwound unwound = {.frames = &frame, .frame_count = 1};
		const struct stall_stack stack = {.frames = &index, .count = 1};

		snprintf(name, sizeof(name), "function_%d", i);
		last = stall_wait_stacks_add(stacks, &snapshot, &unwound, &stack, &full);
		CHECK(full == !last);
	}
	CHECK(full);
	CHECK(stall_wait_stacks_is_full(stacks));
}

#define LONG_NAME 8192
#define LONG_NAMES 16

static size_t names_size(const struct stall_wait_stacks *of, uint32_t stack)
{
	size_t count, size = 0;
	const char *const *names = stall_wait_stacks_frames(of, stack, &count);

	for (size_t i = 0; i < count; i++)
		size += strlen(names[i]);
	return size;
}

// Stacks of a few functions with long names, which each line would have again and again.
static void test_long_names(void)
{
	static const struct stall_snapshot snapshot = {};
	static char names[LONG_NAMES][LONG_NAME + 1];
	static struct stall_frame frames[LONG_NAMES];
	static uint32_t order[STALL_MAX_STACK_NAMES];
	const struct stall_unwound unwound = {.frames = frames, .frame_count = LONG_NAMES};
	const struct stall_stack stack = {.frames = order, .count = STALL_MAX_STACK_NAMES};
	struct stall_wait_stacks *of = NULL;
	size_t all = 0;
	bool full = false;

	CHECK_OK(stall_wait_stacks_create(&of));
	for (size_t i = 0; i < LONG_NAMES; i++) {
		memset(names[i], 'a' + (char)i, LONG_NAME);
		frames[i].symbol = names[i];
	}
	for (uint32_t i = 0; i < STALL_MAX_STACKS && !full; i++) {
		for (uint32_t digit = i, j = 0; j < 4; j++, digit /= LONG_NAMES)
			order[j] = digit % LONG_NAMES;
		uint32_t id = stall_wait_stacks_add(of, &snapshot, &unwound, &stack, &full);
		size_t size = names_size(of, id);
		CHECK(full || size == STALL_MAX_STACK_BYTES);
		all += size;
	}
	CHECK(full);
	CHECK_INT(all, STALL_MAX_STACKS_BYTES);
	stall_wait_stacks_destroy(of);
}

int main(void)
{
	CHECK_OK(stall_wait_table_create(&table));
	CHECK_OK(stall_wait_stacks_create(&stacks));
	fill_table();
	test_line();
	test_more();
	test_rest();
	test_stacks();
	test_full_stacks();
	test_long_names();
	stall_wait_table_destroy(table);
	stall_wait_stacks_destroy(stacks);
	return check_done();
}

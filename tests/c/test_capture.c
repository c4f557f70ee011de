// SPDX-License-Identifier: Apache-2.0
// Captures as text: every line is JSON whatever the target's names hold, records come before those
// that refer to them, and no secret of a command line is in them.
#include "capture/capture.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_writer.h"
#include "capture/cmdline.h"
#include "check.h"

static const char *parse_back(const char *bytes, size_t size)
{
	struct stall_json json;
	static char copy[1024];

	stall_json_init(&json);
	stall_json_string_n(&json, bytes, size);
	CHECK(!json.failed);
	for (size_t i = 0; i < json.size; i++)
		CHECK((unsigned char)json.data[i] >= 0x20 && json.data[i] != 0x7f);
	json_t *value = json_loadb(json.data, json.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	CHECK(json_is_string(value));
	snprintf(copy, sizeof(copy), "%s",
		 json_string_value(value) ? json_string_value(value) : "?");
	json_decref(value);
	stall_json_deinit(&json);
	return copy;
}

static void check_raw(const char *bytes, const char *expected)
{
	struct stall_json json;

	stall_json_init(&json);
	stall_json_string(&json, bytes);
	CHECK_INT(json.size, strlen(expected));
	CHECK(json.size == strlen(expected) && !memcmp(json.data, expected, json.size));
	stall_json_deinit(&json);
}

#define REPLACED "\xef\xbf\xbd"

static void test_strings(void)
{
	CHECK_STRING(parse_back("plain", 5), "plain");
	CHECK_STRING(parse_back("q\"b\\s/", 6), "q\"b\\s/");
	CHECK_STRING(parse_back("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\xac", 15),
		     "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\xac");
	// Control characters, C1 ones among them, are escaped.
	check_raw("\x1b[31m\n\x7f", "\"\\u001b[31m\\u000a\\u007f\"");
	check_raw("\xc2\x9b"
		  "2J",
		  "\"\\u009b2J\"");
	check_raw("\xc2\xa0", "\"\xc2\xa0\"");
	check_raw(NULL, "null");
	// Not UTF-8: cut off, overlong, surrogates, beyond Unicode, stray bytes.
	CHECK_STRING(parse_back("a\xe2\x82", 3), "a" REPLACED REPLACED);
	CHECK_STRING(parse_back("\xc0\xaf", 2), REPLACED REPLACED);
	CHECK_STRING(parse_back("\xe0\x80\xaf", 3), REPLACED REPLACED REPLACED);
	CHECK_STRING(parse_back("\xed\xa0\x80", 3), REPLACED REPLACED REPLACED);
	CHECK_STRING(parse_back("\xf4\x90\x80\x80", 4), REPLACED REPLACED REPLACED REPLACED);
	CHECK_STRING(parse_back("\xff"
				"b\x80",
				3),
		     REPLACED "b" REPLACED);
	CHECK_STRING(parse_back("\xc3(", 2), REPLACED "(");

	unsigned int seed = 20261121;
	printf("seed %u\n", seed);
	srandom(seed);
	for (int i = 0; i < 2000; i++) {
		char bytes[64];
		size_t size = random() % sizeof(bytes);
		for (size_t j = 0; j < size; j++)
			bytes[j] = random() % 4 ? random() : 0xe0 + random() % 32;
		parse_back(bytes, size);
	}
}

static void test_numbers(void)
{
	struct stall_json json;
	static const char expected[] = "[0,18446744073709551615,-9223372036854775808,\"0x0\","
				       "\"0xffffffffffffffff\",\"0x7f00\",0.000000,0.000042,"
				       "18446744073709.551615]";

	stall_json_init(&json);
	stall_json_open(&json, '[');
	stall_json_uint(&json, 0);
	stall_json_uint(&json, UINT64_MAX);
	stall_json_int(&json, INT64_MIN);
	stall_json_hex(&json, 0);
	stall_json_hex(&json, UINT64_MAX);
	stall_json_hex(&json, 0x7f00);
	stall_json_ms(&json, 0);
	stall_json_ms(&json, 42);
	stall_json_ms(&json, UINT64_MAX);
	stall_json_close(&json, ']');
	CHECK_INT(json.size, strlen(expected));
	CHECK(!memcmp(json.data, expected, strlen(expected)));
	stall_json_deinit(&json);
}

static void check_cmdline(const char *text, size_t size, const char *shown, size_t shown_size)
{
	struct stall_cmdline cmdline;
	size_t at = 0;

	CHECK_OK(stall_cmdline_parse(text, size, &cmdline));
	for (size_t i = 0; i < cmdline.count && at < shown_size; i++) {
		CHECK_STRING(cmdline.arguments[i], shown + at);
		at += strlen(shown + at) + 1;
	}
	CHECK_INT(at, shown_size);
	stall_cmdline_deinit(&cmdline);
}

#define CHECK_CMDLINE(text, shown) check_cmdline(text, sizeof(text), shown, sizeof(shown))

// The rules are tested in tests/unit/test_commandline.py, and these to be the same in tests/root.
static void test_cmdline(void)
{
	CHECK_CMDLINE("/usr/sbin/mysqld\0--datadir=/d\0--password=s\0--port\0"
		      "3306\0--pass\0s\0-ps\0-c\0port=5\0A=s\0s",
		      "/usr/sbin/mysqld\0--datadir=/d\0--password=?\0--port\0"
		      "3306\0--pass\0?\0-p?\0-c\0port=5\0A=?\0?");
	CHECK_CMDLINE("postgres: u d 1.2.3.4(5) idle\0\0", "postgres: u d 1.2.3.4(5) idle\0\0");
	CHECK_CMDLINE("a b=s", "a ?");
	check_cmdline("", 0, "", 0);
}

#define HOSTILE "e\x1b[2J\xff\"\\"

struct scene {
	struct stall_module modules[1];
	struct stall_maps maps;
	struct stall_process process;
	struct stall_thread threads[4];
	struct stall_note notes[1];
	struct stall_snapshot snapshot;
	struct stall_frame frames[2];
	uint32_t chain[2], same_chain[2];
	struct stall_stack user[4];
	struct stall_module_info infos[1];
	struct stall_unwound unwound;
	struct stall_lock locks[1];
	uint32_t thread_lock[4];
	struct stall_locks all_locks;
};

static void make_scene(struct scene *scene)
{
	*scene = (struct scene){
		.modules =
			{{.path = "/lib/" HOSTILE ".so", .start = 0x1000, .end = 0x3000, .fd = -1}},
		.process = {.target = {.pid = 7, .procfd = -1, .start_time = 99},
			    .ppid = 1,
			    .comm = HOSTILE,
			    .exe = NULL,
			    .thread_count = 4,
			    .threads_lost = 3},
		.notes = {{"threads-lost", "three\nlost"}},
		.frames = {{.module = 0,
			    .pc = 0x1234,
			    .offset = 0x234,
			    .symbol = "f<" HOSTILE ">(int)",
			    .linkage = "_Zf",
			    .symbol_offset = 4},
			   {.module = STALL_NO_MODULE, .pc = 0xdead}},
		.chain = {0, 1},
		.same_chain = {0, 1},
		.infos = {{.process = 0,
			   .module = 0,
			   .build_id = "abcd",
			   .bias = 0x1000,
			   .symbols = ".symtab",
			   .cfi = ".eh_frame"}},
		.locks = {{.address = 0x5000,
			   .futex = 0x5000,
			   .kind = STALL_LOCK_MUTEX,
			   .owner_raw = 4711,
			   .waiters = 1,
			   .symbol = "LOCK",
			   .symbol_offset = 8}},
		.thread_lock = {UINT32_MAX, 0, UINT32_MAX, UINT32_MAX},
	};
	for (int i = 0; i < 4; i++) {
		scene->threads[i] = (struct stall_thread){.tid = 10 + i,
							  .ns_tid = 10 + i,
							  .state = 'S',
							  .label = i};
		memcpy(scene->threads[i].comm, "0123456789abcdef", STALL_COMM); // no NUL
		scene->user[i] = (struct stall_stack){.end = STALL_UNWIND_NOT_TRIED};
	}
	scene->threads[1].ns_tid = 2;
	scene->threads[1].in_syscall = true;
	scene->threads[1].syscall = 202;
	scene->threads[1].args[5] = UINT64_MAX;
	scene->threads[3].stopped_ns = 17;
	for (int i = 0; i < 2; i++) {
		scene->threads[i].kernel_frames[0] = 0xffffffff81000000 + i;
		scene->threads[i].kernel_frames[1] = 0xffffffff82000000;
		scene->threads[i].kernel_frame_count = 2;
	}
	scene->user[0] = (struct stall_stack){scene->chain, 2, STALL_UNWIND_COMPLETE, 0};
	scene->user[1] = (struct stall_stack){scene->same_chain, 2, STALL_UNWIND_NO_CFI, 5};
	scene->maps = (struct stall_maps){.modules = scene->modules, .module_count = 1};
	scene->process.maps = &scene->maps;
	scene->snapshot = (struct stall_snapshot){.backend = "bpf",
						  .wall_ns = 1795252249695693626,
						  .processes = &scene->process,
						  .process_count = 1,
						  .threads = scene->threads,
						  .thread_count = 4,
						  .notes = scene->notes,
						  .note_count = 1};
	scene->unwound = (struct stall_unwound){.frames = scene->frames,
						.frame_count = 2,
						.stacks = scene->user,
						.stack_count = 4,
						.modules = scene->infos,
						.module_count = 1};
	scene->all_locks = (struct stall_locks){.locks = scene->locks,
						.count = 1,
						.thread_lock = scene->thread_lock};
}

// Every line of the capture, parsed.
static json_t *write_and_parse(const struct stall_capture *capture)
{
	int fd = memfd_create("capture", MFD_CLOEXEC);
	struct stall_output *output;
	json_t *records = json_array();
	char *line = NULL;
	size_t size = 0;

	CHECK_OK(stall_output_create_fd(fd, &output));
	CHECK_OK(stall_capture_write(capture, output));
	CHECK_OK(stall_output_commit(output));
	stall_output_destroy(output);
	lseek(fd, 0, SEEK_SET);
	FILE *file = fdopen(fd, "r");
	for (ssize_t length; (length = getline(&line, &size, file)) > 0;) {
		json_error_t error;
		json_t *record = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
		if (!record)
			fprintf(stderr, "%s: %s", error.text, line);
		CHECK(json_is_object(record));
		CHECK_INT(line[length - 1], '\n');
		json_array_append_new(records, record);
	}
	free(line);
	fclose(file);
	return records;
}

static const char *text_of(const json_t *record, const char *key)
{
	return json_string_value(json_object_get(record, key));
}

static long long number_of(const json_t *record, const char *key)
{
	return json_integer_value(json_object_get(record, key));
}

// The nth record of a type.
static json_t *find(const json_t *records, const char *type, int n)
{
	size_t i;
	json_t *record;

	json_array_foreach (records, i, record)
		if (!strcmp(text_of(record, "type"), type) && n-- == 0)
			return record;
	return NULL;
}

static void check_threads(const json_t *records)
{
	const json_t *first = find(records, "thread", 0), *second = find(records, "thread", 1);

	CHECK_STRING(text_of(first, "name"), "0123456789abcdef");
	CHECK_STRING(text_of(first, "label"), "verified");
	CHECK_STRING(text_of(find(records, "thread", 3), "label"), "truncated");
	CHECK(!json_object_get(first, "ns_tid"));
	CHECK_INT(number_of(second, "ns_tid"), 2);
	CHECK(json_is_null(json_object_get(first, "lock")));
	CHECK_INT(number_of(second, "lock"), 0);
	CHECK_INT(number_of(second, "live_reads"), 5);
	const json_t *call = json_object_get(second, "syscall");
	CHECK_STRING(text_of(call, "name"), "futex");
	CHECK_STRING(json_string_value(json_array_get(json_object_get(call, "args"), 5)),
		     "0xffffffffffffffff");
	// Equal stacks are one, kernel stacks that differ are two.
	CHECK_INT(number_of(first, "stack"), number_of(second, "stack"));
	CHECK(number_of(first, "kernel_stack") != number_of(second, "kernel_stack"));
	CHECK(json_is_null(json_object_get(find(records, "thread", 2), "stack")));
	CHECK(!find(records, "stack", 3));
}

static double fraction_of(const json_t *record, const char *key)
{
	return json_real_value(json_object_get(record, key));
}

static void check_trigger(const json_t *record)
{
	CHECK_STRING(text_of(record, "reason"), "threshold");
	CHECK_STRING(text_of(record, "kind"), "mutex");
	CHECK_STRING(text_of(record, "name"), "LOCK+0x8");
	CHECK_STRING(text_of(record, "address"), "0x5000");
	CHECK_INT(number_of(record, "pid"), 7);
	CHECK_INT(number_of(record, "tid"), 11);
	CHECK(fraction_of(record, "length_ms") == 21.5);
	CHECK(fraction_of(record, "threshold_ms") == 20);
	CHECK_INT(number_of(record, "waiters"), 3);
	CHECK(fraction_of(record, "delay_ms") == 1.5);
	CHECK(fraction_of(record, "copied_ms") == 2);
	CHECK(fraction_of(record, "finished_ms") > 2);
	CHECK_INT(number_of(record, "suppressed"), 5);
}

static size_t count_of(json_t *records, const char *type)
{
	size_t count = 0, i;
	json_t *record;

	json_array_foreach (records, i, record)
		count += !strcmp(text_of(record, "type"), type);
	return count;
}

// What has no room is left out, with what refers to it, and counted in a note.
static void test_full(const struct stall_capture *whole)
{
	struct stall_capture capture = *whole;
	size_t frames = whole->unwound->frame_count + whole->stacks->kernel_frame_count, i;
	char message[160];
	json_t *record;

	capture.max_table_bytes = 1;
	json_t *records = write_and_parse(&capture);
	CHECK_INT(count_of(records, "frame"), 1);
	CHECK_INT(count_of(records, "stack"), 1);
	json_array_foreach (json_object_get(find(records, "stack", 0), "frames"), i, record)
		CHECK_INT(json_integer_value(record), 0);
	json_array_foreach (records, i, record) {
		json_t *stack = json_object_get(record, "stack");

		CHECK(!stack || json_is_null(stack) || json_integer_value(stack) == 0);
	}
	record = find(records, "note", 0);
	CHECK_STRING(text_of(record, "code"), "capture-size");
	snprintf(message, sizeof(message), "%zu frames and %zu stacks were left out: ", frames - 1,
		 whole->stacks->stack_count - 1);
	CHECK(!strncmp(text_of(record, "message"), message, strlen(message)));
	json_decref(records);
}

#define LONG_NAME 8192
#define LONG_FRAMES 10000

// Frames of one function with a long name, which is written once.
static void test_same_names(const struct stall_capture *whole)
{
	static char symbol[LONG_NAME], linkage[LONG_NAME];
	struct stall_frame *frames = calloc(LONG_FRAMES, sizeof(*frames));
	struct stall_unwound unwound = *whole->unwound;
	struct stall_capture capture = *whole;

	memset(symbol, 'n', sizeof(symbol) - 1);
	memset(linkage, 'l', sizeof(linkage) - 1);
	for (size_t i = 0; i < LONG_FRAMES; i++)
		frames[i] = (struct stall_frame){.module = STALL_NO_MODULE,
						 .pc = 0x1000 + i,
						 .symbol = symbol,
						 .linkage = linkage,
						 .symbol_offset = i};
	unwound.frames = frames;
	unwound.frame_count = LONG_FRAMES;
	capture.unwound = &unwound;
	json_t *records = write_and_parse(&capture);
	CHECK_STRING(text_of(find(records, "capture", 0), "schema"), "stallscope.capture/2");
	CHECK_STRING(text_of(find(records, "frame", 0), "linkage"), linkage);
	json_t *last = find(records, "frame", LONG_FRAMES - 1);
	CHECK(json_is_null(json_object_get(last, "symbol")));
	CHECK(json_is_null(json_object_get(last, "linkage")));
	CHECK_INT(number_of(last, "same_name"), 0);
	CHECK_INT(number_of(last, "symbol_offset"), LONG_FRAMES - 1);
	CHECK_INT(count_of(records, "frame"), LONG_FRAMES + whole->stacks->kernel_frame_count);
	json_decref(records);
	free(frames);
}

static void test_records(void)
{
	static const char *const order[] = {"capture", "process", "module", "frame",   "stack",
					    "lock",    "thread",  "note",   "trigger", "end"};
	struct stall_capture_stacks stacks;
	struct stall_host host;
	struct scene scene;
	size_t i, stage = 0;
	json_t *record;

	make_scene(&scene);
	stall_host_init(&host);
	CHECK_OK(stall_capture_stacks_init(&stacks, &scene.snapshot, &scene.unwound));
	CHECK_INT(stacks.kernel_frame_count, 3);
	stacks.kernel_frames[0].name = "schedule";
	const struct stall_capture_string strings[] = {{0, "server_version", HOSTILE}};
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
	const struct stall_trigger trigger = {
		.reason = "threshold",
		.kind = "mutex",
		.address = 0x5000, // of the lock above: its name
		.pid = 7,
		.tid = 11,
		.length_ns = 21500000,
		.threshold_ns = 20000000,
		.waiters = 3,
		.crossed_ns = now_ns - 2000000,
		.received_ns = now_ns - 500000,
		.copied_ns = now_ns,
		.suppressed = 5,
	};
	struct stall_capture capture = {
		.snapshot = &scene.snapshot,
		.trigger = &trigger,
		.unwound = &scene.unwound,
		.locks = &scene.all_locks,
		.stacks = &stacks,
		.host = &host,
		.strings = strings,
		.string_count = 1,
		.started_ns = stall_clock_ns(CLOCK_MONOTONIC),
	};
	json_t *records = write_and_parse(&capture);
	json_array_foreach (records, i, record) {
		while (stage < 10 && strcmp(order[stage], text_of(record, "type")))
			stage++;
		CHECK(stage < 10);
	}
	CHECK_STRING(text_of(find(records, "capture", 0), "schema"), "stallscope.capture/1");
	CHECK_STRING(text_of(find(records, "capture", 0), "time"), "2026-11-21T09:10:49.695693Z");
	record = find(records, "process", 0);
	CHECK_STRING(text_of(record, "comm"), "e\x1b[2J" REPLACED "\"\\");
	CHECK_STRING(text_of(json_object_get(record, "strings"), "server_version"),
		     "e\x1b[2J" REPLACED "\"\\");
	CHECK(json_is_null(json_object_get(record, "exe")));
	CHECK_STRING(text_of(find(records, "frame", 0), "symbol"),
		     "f<e\x1b[2J" REPLACED "\"\\>(int)");
	CHECK_STRING(text_of(find(records, "frame", 0), "offset"), "0x234");
	CHECK(json_is_null(json_object_get(find(records, "frame", 1), "module")));
	CHECK(json_is_true(json_object_get(find(records, "frame", 2), "kernel")));
	CHECK_STRING(text_of(find(records, "frame", 2), "symbol"), "schedule");
	CHECK(json_is_null(json_object_get(find(records, "frame", 3), "symbol")));
	record = find(records, "lock", 0);
	CHECK_STRING(text_of(record, "symbol"), "LOCK+0x8");
	CHECK(json_is_null(json_object_get(record, "owner_tid")));
	CHECK_INT(number_of(record, "owner_raw"), 4711);
	CHECK_STRING(text_of(find(records, "note", 0), "message"), "three\nlost");
	check_threads(records);
	check_trigger(find(records, "trigger", 0));
	record = json_array_get(records, json_array_size(records) - 1);
	CHECK_STRING(text_of(record, "type"), "end");
	CHECK_INT(number_of(record, "threads"), 4);
	CHECK_INT(number_of(record, "stopped_ns"), 17);
	CHECK_INT(number_of(record, "live_reads"), 5);
	CHECK_INT(number_of(json_object_get(record, "labels"), "raced"), 1);
	CHECK(number_of(json_object_get(record, "phases"), "write_ns") > 0);
	json_decref(records);
	test_full(&capture);
	test_same_names(&capture);
	stall_capture_stacks_deinit(&stacks);
}

int main(void)
{
	test_strings();
	test_numbers();
	test_cmdline();
	test_records();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// Connections are read from a child that has a server's objects in memory shared with this test.
// Whatever is wrong in there, a field is right or unknown.
#include "introspect/sessions.h"

#include <jansson.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "introspect/session_text.h"
#include "proc/read_child.h"

#define PAGE 4096UL
#define NOTHING (2UL << 20) // behind the pages: more than a layout may name
#define THREADS 4
#define TEXTS (64 * 1024)
#define PLACE (-64)
#define FLIPS 30000 // reads of an object that changes

// What a server keeps of one connection.
struct object {
	uint64_t begin;
	const char *user, *user_2;
	const char *host;
	uint32_t host_length, pad_1;
	const char *host_2;
	const char *database;
	uint32_t database_length, pad_2;
	uint32_t id, id_2;
	uint32_t command, status;
	uint64_t start;
	uint64_t idle;
	uint64_t far[512]; // the fields behind are in another range
	const char *query;
	uint32_t query_length, pad_3;
	void *last;
	const char *state;
	uint64_t self;
	uint64_t begun;		 // nanoseconds
	uint64_t far_again[512]; // and behind these, too
	uint64_t self_2;
	uint64_t end;
};

// A second object that a first one points to, with the last statement.
struct second {
	uint64_t begin;
	const char *text;
	uint32_t length, pad;
	uint64_t begun;
};

static struct shared {
	// The control block of a thread is behind its pointer to an object.
	struct {
		struct object *object;
		uint8_t between[-PLACE - sizeof(void *)];
		uint8_t block[64];
	} threads[THREADS];
	struct object objects[THREADS];
	struct second second;
	char texts[TEXTS];
	char big[20 << 20]; // statements
} * shared;

static uint8_t *pages; // the last one ends a mapping: nothing follows
static struct stall_arena arena;
static struct stall_snapshot *snapshot;
static struct stall_layout layout; // of an object, until a test changes it
static pid_t child;

static void describe(void)
{
	char text[2048];

#define AT(field) ((int)offsetof(struct object, field))
	snprintf(text, sizeof(text),
		 "thd.tls=%d thd.self=%d thd.id=%d thd.id.2=%d thd.user=%d thd.user.2=%d "
		 "thd.host=%d thd.host#length=%d thd.host.2=%d "
		 "thd.database=%d thd.database#length=%d "
		 "thd.command=%d thd.status=%d thd.start=%d thd.start#clock=1 thd.query=%d "
		 "thd.state=%d",
		 PLACE, AT(self), AT(id), AT(id_2), AT(user), AT(user_2), AT(host), AT(host_length),
		 AT(host_2), AT(database), AT(database_length), AT(command), AT(status), AT(start),
		 AT(query), AT(state));
	CHECK_OK(stall_layout_add(&layout, text));
}

// `format` has one number.
static void add_key(const char *format, size_t number)
{
	char text[64];

	snprintf(text, sizeof(text), format, number);
	CHECK_OK(stall_layout_add(&layout, text));
}

static struct object *reset(int i)
{
	struct object *object = &shared->objects[i];
	char *texts = &shared->texts[i * 1024];

	memset(texts, 0, 1024);
	strcpy(texts, "app");
	strcpy(texts + 32, "10.0.0.7:3306");
	strcpy(texts + 48, "10.0.0.7");
	strcpy(texts + 64, "shop;"); // its length ends it
	strcpy(texts + 96, "updating");
	strcpy(texts + 128, "UPDATE t SET a = 1");
	strcpy(texts + 256, "app");
	*object = (struct object){
		.user = texts,
		.user_2 = texts + 256,
		.host = texts + 32,
		.host_length = 8,
		.host_2 = texts + 48,
		.database = texts + 64,
		.database_length = 4,
		.id = 1000 + i,
		.id_2 = 1000 + i,
		.command = 3,
		.status = 3,
		.start = stall_clock_ns(CLOCK_MONOTONIC) / 1000 - 5000000,
		.query = texts + 128,
		.query_length = 18,
		.state = texts + 96,
		.self = (uintptr_t)shared->threads[i].block,
	};
	shared->threads[i].object = object;
	return object;
}

static void begin(void (*runs)(void))
{
	describe();
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	pages = mmap(NULL, 3 * PAGE + NOTHING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		     -1, 0);
	mprotect(pages + 3 * PAGE, NOTHING, PROT_NONE);
	for (int i = 0; i < THREADS; i++)
		reset(i);
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			if (runs)
				runs();
			else
				pause();
		}
	}
	CHECK_OK(stall_arena_init(&arena, 16 << 20));
	CHECK_OK(stall_snapshot_create(&arena, &child, 1, NULL, &snapshot));
	snapshot->threads = calloc(THREADS, sizeof(*snapshot->threads));
	snapshot->thread_count = THREADS;
	for (int i = 0; i < THREADS; i++)
		snapshot->threads[i] = (struct stall_thread){
			.tid = child + i,
			.fs_base = (uintptr_t)shared->threads[i].block,
		};
}

static void end(void)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	stall_snapshot_destroy(snapshot);
	stall_arena_deinit(&arena);
	munmap(shared, sizeof(*shared));
	munmap(pages, 3 * PAGE + NOTHING);
	stall_layout_deinit(&layout);
}

static struct stall_sessions read_all(void)
{
	struct stall_sessions sessions = {};

	arena.used = arena.used > (8 << 20) ? 4 << 20 : arena.used; // of earlier reads
	CHECK_OK(stall_sessions_read(snapshot, &layout, &sessions));
	return sessions;
}

static void check_known(const struct stall_session *session, int i)
{
	CHECK_INT(session->thread, i);
	CHECK_INT(session->connection, 1000 + i);
	CHECK_STRING(session->user, "app");
	CHECK_STRING(session->host, "10.0.0.7");
	CHECK_STRING(session->database, "shop");
	CHECK_STRING(session->state, "updating");
	CHECK_INT(session->command, 3);
	CHECK_INT(session->transaction, 1);
	CHECK_INT(session->statement_size, 18);
	CHECK(session->statement && !memcmp(session->statement, "UPDATE t SET a = 1", 18));
	CHECK(!session->cut && !session->last);
}

static void test_all_fields(void)
{
	for (int i = 0; i < THREADS; i++)
		reset(i);
	snapshot->begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_sessions sessions = read_all();
	CHECK_INT(sessions.count, THREADS);
	CHECK_INT(sessions.rejected, 0);
	for (size_t i = 0; i < sessions.count; i++) {
		check_known(&sessions.sessions[i], i);
		uint64_t age = sessions.sessions[i].age_ns;
		CHECK(age > 4900000000 && age < 60000000000);
	}
	stall_sessions_deinit(&sessions);

	// Those that did not run since the capture before are not read again; nor are those whose
	// control block is not known.
	snapshot->threads[1].unchanged = true;
	snapshot->threads[2].fs_base = 0;
	sessions = read_all();
	CHECK_INT(sessions.count, 2);
	CHECK_INT(sessions.rejected, 0);
	CHECK(sessions.count == 2 && sessions.sessions[0].thread == 0 &&
	      sessions.sessions[1].thread == 3);
	stall_sessions_deinit(&sessions);

	// Without what says that an object is a connection nothing is read.
	stall_layout_deinit(&layout);
	CHECK_OK(stall_layout_add(&layout, "thd.tls=-64 thd.id=8"));
	sessions = read_all();
	CHECK_INT(sessions.count + sessions.rejected, 0);
	stall_sessions_deinit(&sessions);
}

static bool is; // a connection

// The second of four is damaged; whatever is in it, the others stay right.
static struct stall_session look(void)
{
	struct stall_session found = {};
	struct stall_sessions sessions = read_all();

	is = false;
	CHECK(sessions.count + sessions.rejected <= THREADS);
	for (size_t i = 0; i < sessions.count; i++) {
		if (sessions.sessions[i].thread == 1) {
			found = sessions.sessions[i];
			is = true;
		} else {
			check_known(&sessions.sessions[i], sessions.sessions[i].thread);
		}
	}
	CHECK_INT(sessions.count - is, THREADS - 1);
	stall_sessions_deinit(&sessions);
	return found;
}

static void test_no_connection(void)
{
	struct object *const pointers[] = {
		NULL,
		(struct object *)8,
		(struct object *)(uintptr_t)UINT64_MAX,
		(struct object *)((uint8_t *)&shared->objects[1] + 1), // not aligned
		(struct object *)(pages + 3 * PAGE),		       // not mapped
		(struct object *)(pages + 3 * PAGE - 64),	       // its end is not mapped
		(struct object *)0x7ffffffff000,
		(struct object *)0xffff800000000000,
		(struct object *)&shared->threads[1].object, // points to itself
		&shared->objects[2],			     // that of another thread
	};
	for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
		reset(1);
		shared->threads[1].object = pointers[i];
		look();
		CHECK(!is);
	}
	reset(1)->self++;
	look();
	CHECK(!is);
	reset(1)->id = 0;
	shared->objects[1].id_2 = 0;
	look();
	CHECK(!is);
	reset(1)->id_2 = 77;
	look();
	CHECK(!is);

	// An object at the very end of a mapping is whole.
	struct object *last = (struct object *)(pages + 3 * PAGE) - 1;
	*last = *reset(1);
	shared->threads[1].object = last;
	struct stall_session session = look();
	CHECK(is);
	check_known(&session, 1);
}

static const char *put_text(const char *bytes, size_t size)
{
	char *at = &shared->texts[TEXTS - 8192];

	memset(at, 0, 8192);
	memcpy(at, bytes, size);
	return at;
}

static void test_names(void)
{
	struct stall_session session;
	char name[300];

	const char *const pointers[] = {
		(char *)8,
		(char *)0x7ffffffff000,
		(char *)UINT64_MAX,
		(char *)pages + 3 * PAGE,
		(char *)&shared->objects[1].user, // bytes of a pointer
		"\x1b[2J",
	};
	for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
		const char *at = i + 1 < sizeof(pointers) / sizeof(pointers[0])
					 ? pointers[i]
					 : put_text(pointers[i], 5);
		struct object *object = reset(1);

		object->user = object->user_2 = at;
		object->host = object->host_2 = object->database = object->state = at;
		session = look();
		CHECK(is);
		if (at != (char *)&shared->objects[1].user) {
			CHECK_STRING(session.user, "");
			CHECK_STRING(session.host, "");
			CHECK_STRING(session.database, "");
			CHECK_STRING(session.state, "");
		}
		CHECK_INT(session.connection, 1001);
		CHECK_INT(session.statement_size, 18);
	}

	// Texts without an end, and as long as can be.
	memset(name, 'n', sizeof(name));
	reset(1)->state = put_text(name, sizeof(name));
	CHECK_STRING(look().state, "");
	name[STALL_SESSION_NAME - 1] = '\0';
	reset(1)->state = put_text(name, STALL_SESSION_NAME);
	CHECK_STRING(look().state, name);

	// A text that ends with its mapping, and one that goes on behind it.
	memcpy(pages + 3 * PAGE - 4, "end", 4);
	reset(1)->state = (char *)pages + 3 * PAGE - 4;
	CHECK_STRING(look().state, "end");
	pages[3 * PAGE - 1] = 'x';
	CHECK_STRING(look().state, "");

	static const uint32_t lengths[] = {127, 128, 4096, INT32_MAX, UINT32_MAX};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		reset(1)->database_length = lengths[i];
		CHECK_STRING(look().database, "");
	}
	reset(1)->database_length = 0;
	CHECK_STRING(look().database, "");

	// Places that disagree, and one that has none.
	strcpy(&shared->texts[1024 + 256], "root");
	reset(1)->user_2 = put_text("root", 5);
	CHECK_STRING(look().user, "");
	reset(1)->user_2 = put_text("apple", 6);
	CHECK_STRING(look().user, "");
	reset(1)->user_2 = NULL;
	CHECK_STRING(look().user, "");
	reset(1)->user = NULL;
	CHECK_STRING(look().user, "");
	shared->objects[1].user_2 = NULL;
	CHECK_STRING(look().user, "");
	// A client without a name has an address alone.
	reset(1)->host = NULL;
	CHECK_STRING(look().host, "10.0.0.7");
	shared->objects[1].host_2 = NULL;
	CHECK_STRING(look().host, "");
	reset(1)->host_2 = put_text("10.0.0.8", 9);
	CHECK_STRING(look().host, "");
}

static void test_numbers(void)
{
	struct stall_session session;

	snapshot->begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	reset(1)->command = 256;
	shared->objects[1].status = 0xfffffffe;
	session = look();
	CHECK_INT(session.command, -1);
	CHECK_INT(session.transaction, 0);
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC) / 1000;
	// Never begun, long before the machine, and hours ahead: a clock that was set, or no time.
	const uint64_t starts[] = {0, UINT64_MAX, UINT64_MAX / 1000, UINT64_C(1) << 63,
				   now + 7200000000};
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		reset(1)->start = starts[i];
		session = look();
		CHECK(is);
		CHECK(session.age_ns == UINT64_MAX);
	}
	// Since the capture began.
	reset(1)->start = now + 1000;
	CHECK_INT(look().age_ns, 0);
}

static void test_statements(void)
{
	struct stall_session session;

	memset(shared->big, 'S', sizeof(shared->big));
	static const uint32_t lengths[] = {4095, 4096, 4097, 16 << 20, UINT32_MAX};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint32_t length = lengths[i];
		struct object *object = reset(1);

		object->query = shared->big;
		object->query_length = length;
		session = look();
		CHECK_INT(session.statement_size, length < 4096 ? length : 4096);
		CHECK_INT(session.cut, length > 4096);
		CHECK(session.statement && session.statement[0] == 'S');
	}
	// Any bytes are a statement: its length says where it ends.
	static const char binary[] = "INSERT '\0\xff\xfe\x1b[2J\xc3";
	struct object *object = reset(1);
	object->query = put_text(binary, sizeof(binary));
	object->query_length = sizeof(binary);
	session = look();
	CHECK_INT(session.statement_size, sizeof(binary));
	CHECK(session.statement && !memcmp(session.statement, binary, sizeof(binary)));

	const char *const pointers[] = {
		NULL,
		(char *)8,
		(char *)UINT64_MAX,
		(char *)pages + 3 * PAGE,
		(char *)pages + 3 * PAGE - 17, // one byte is missing
	};
	for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
		reset(1)->query = pointers[i];
		session = look();
		CHECK(is && !session.statement);
		CHECK_STRING(session.user, "app");
	}
	reset(1)->query_length = 0;
	session = look();
	CHECK(is && !session.statement);
}

static struct object *rest(void)
{
	struct object *object = reset(1);

	object->query = NULL;
	object->command = 0;
	return object;
}

static void test_last_statements(void)
{
	struct stall_session session;

	add_key("thd.last=%zu thd.last#delta=5", AT(last));
	rest()->last = (char *)put_text("\x0b\0\0\0\3SELECT * t", 16);
	session = look();
	CHECK(session.statement && session.last && !session.cut);
	CHECK_INT(session.statement_size, 10);
	CHECK(session.statement && !memcmp(session.statement, "SELECT * t", 10));

	// That of a connection that has ended is nobody's.
	shared->objects[1].user = NULL;
	CHECK(is && look().statement);
	shared->objects[1].user_2 = NULL;
	CHECK(is && !look().connection && !is);

	// Not of a connection that runs something, and none that binary data is in its place.
	rest()->last = (char *)put_text("\x0b\0\0\0\3SELECT * t", 16);
	shared->objects[1].command = 3;
	CHECK(!look().statement);
	rest()->last = (char *)put_text("12345SELECT \1", 14);
	CHECK(!look().statement);
	rest()->last = (char *)put_text("12345", 6);
	CHECK(!look().statement);
	rest()->last = (char *)UINT64_MAX;
	CHECK(!look().statement);
	rest()->last = NULL;
	CHECK(is && !look().statement);
	memset(shared->big, 'S', sizeof(shared->big));
	rest()->last = shared->big;
	session = look();
	CHECK(session.cut && session.last);
	CHECK_INT(session.statement_size, 4096);
	// It goes on behind the end of the mapping, and has no end there.
	memset(pages + 3 * PAGE - 64, 'S', 64);
	rest()->last = pages + 3 * PAGE - 64;
	CHECK(!look().statement);
	pages[3 * PAGE - 1] = '\0';
	CHECK_INT(look().statement_size, 64 - 5 - 1);
}

static void add_second(void)
{
	add_key("thd.last=%zu", AT(last));
	add_key("thd.last.1=%zu", offsetof(struct second, text));
	add_key("thd.last#length=%zu", offsetof(struct second, length));
}

static void test_last_statements_of_a_second_object(void)
{
	struct stall_session session;

	add_second();
	struct second *second = &shared->second;
	*second = (struct second){.text = put_text("COMMIT; and more", 17), .length = 6};
	rest()->last = second;
	session = look();
	CHECK(session.last && !session.cut && session.statement_size == 6);
	second->length = UINT32_MAX;
	session = look();
	CHECK(!session.statement || session.statement_size <= 4096);
	second->length = 0;
	CHECK(!look().statement);
	second->text = (char *)pages + 3 * PAGE;
	second->length = 6;
	CHECK(!look().statement);
	rest()->last = pages + 3 * PAGE - 8;
	CHECK(!look().statement);
	rest()->last = &shared->objects[1];
	look();
}

// Until a connection has run a statement, its object can have what an earlier connection left there.
static void test_last_statements_of_others(void)
{
	add_second();
	add_key("thd.start#clock=0 thd.last#begun=%zu", AT(begun));
	add_key("thd.last.1#begun=%zu", offsetof(struct second, begun));
	uint64_t now = stall_clock_ns(CLOCK_REALTIME);
	snapshot->wall_ns = now;
	struct second *second = &shared->second;
	*second = (struct second){.text = put_text("COMMIT", 7), .length = 6, .begun = now};
	struct object *object = rest();
	object->last = second;
	object->start = now / 1000;
	object->begun = now;
	CHECK(look().statement != NULL);
	// The pointer is to what another one runs meanwhile.
	second->begun = now + 1;
	CHECK(is && !look().statement);
	second->begun = now;
	// It is from before the connection's last command.
	object->start = now / 1000 + 6000;
	CHECK(is && !look().statement);
	object->start = now / 1000 - 6000;
	CHECK(is && !look().statement);
	object->start = now / 1000 - 100;
	CHECK(look().statement != NULL);
	object->last = pages + 3 * PAGE - 12;
	CHECK(is && !look().statement);
}

static void test_idle_time(void)
{
	add_key("thd.idle=%zu thd.idle#clock=1", AT(idle));
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC) / 1000;
	snapshot->begun_ns = now * 1000;
	struct object *object = rest();
	object->start = now - 5000000;
	object->idle = now - 2000000;
	CHECK_INT(look().age_ns, 2000000000);
	// A later command that is no statement.
	object->idle = now - 7000000;
	CHECK_INT(look().age_ns, 5000000000);
	object->idle = 0;
	CHECK_INT(look().age_ns, 5000000000);
	// Not of one that runs something.
	object = reset(1);
	object->start = now - 5000000;
	object->idle = now - 2000000;
	CHECK_INT(look().age_ns, 5000000000);
}

// One of two places names the thread, near the other fields or far from them.
static void test_places_of_a_thread(void)
{
	for (int i = 0; i < 2; i++) {
		add_key("thd.self.2=%zu", AT(self_2));
		add_key(i ? "thd.self.3=%zu" : "thd.self=%zu", i ? AT(begun) : AT(self));
		struct object *object = reset(1);
		uint64_t block = object->self;
		object->self = 0;
		object->self_2 = block;
		struct stall_session session = look();
		CHECK(is);
		check_known(&session, 1);
		object->self_2 = block + 1;
		look();
		CHECK(!is);
		object->begun = block;
		look();
		CHECK_INT(is, i == 1);
	}
}

// More than are read at a time, some with the same texts, of which a few are no connections.
static void test_many(void)
{
	enum { MANY = 700 };
	size_t at = 0;

	free(snapshot->threads);
	snapshot->threads = calloc(MANY, sizeof(*snapshot->threads));
	snapshot->thread_count = MANY;
	for (int i = 0; i < MANY; i++)
		snapshot->threads[i].fs_base =
			i % 7 ? (uintptr_t)shared->threads[i % THREADS].block : (uintptr_t)pages;
	struct stall_sessions sessions = read_all();
	CHECK_INT(sessions.count, MANY - MANY / 7);
	for (size_t i = 0; i < sessions.count; i++, at++) {
		struct stall_session session = sessions.sessions[i];

		at += at % 7 == 0;
		CHECK_INT(session.thread, at);
		session.thread = at % THREADS;
		check_known(&session, session.thread);
	}
	stall_sessions_deinit(&sessions);
}

// Offsets that no build has: nothing is read there, and nothing breaks.
static void test_layouts_of_others(void)
{
	static const char *const cases[] = {
		"thd.tls=1048577", "thd.tls=-9223372036854775808", "thd.self=-1",
		"thd.id=1048576",  "thd.self=9223372036854775807",
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		stall_layout_deinit(&layout);
		describe();
		CHECK_OK(stall_layout_add(&layout, cases[i]));
		struct stall_sessions sessions = read_all();
		CHECK_INT(sessions.count, 0);
		stall_sessions_deinit(&sessions);
	}
	// Keys of no use are left alone; a far field is a field, and behind it there is nothing.
	stall_layout_deinit(&layout);
	describe();
	CHECK_OK(stall_layout_add(&layout, "thd.host#length=3 thd.state=-8 thd.last#delta=-4 "
					   "thd.unknown=5 thd.database=1048568"));
	struct object *last = (struct object *)(pages + 3 * PAGE) - 1;
	*last = *reset(3);
	shared->threads[3].object = last;
	struct stall_sessions sessions = read_all();
	CHECK_INT(sessions.count, THREADS - 1);
	CHECK_INT(sessions.rejected, 1);
	for (size_t i = 0; i < sessions.count; i++) {
		CHECK_STRING(sessions.sessions[i].user, "app");
		CHECK_STRING(sessions.sessions[i].host, ""); // its end is not known
		CHECK_STRING(sessions.sessions[i].database, "");
		CHECK_STRING(sessions.sessions[i].state, "");
	}
	stall_sessions_deinit(&sessions);
}

static void test_line(void)
{
	struct stall_json json;
	json_error_t error;

	static const char binary[] = "INSERT \"\0\xff\xfe\x1b[2J\n\xc3";
	reset(1)->query = put_text(binary, sizeof(binary));
	shared->objects[1].query_length = sizeof(binary);
	shared->objects[1].database = NULL;
	char *user = &shared->texts[1024];
	strcpy(user, "\xc3\x28\"\\");
	shared->objects[1].user_2 = user;
	struct stall_sessions sessions = read_all();
	stall_json_init(&json);
	stall_sessions_write(&sessions, snapshot, &json);
	CHECK(!json.failed && json.size && json.data[json.size - 1] == '\n');
	CHECK(memchr(json.data, '\n', json.size) == json.data + json.size - 1);
	CHECK(!memchr(json.data, 0x1b, json.size));
	json_t *line = json_loadb(json.data, json.size, JSON_ALLOW_NUL, &error);
	CHECK(line != NULL);
	CHECK_STRING(json_string_value(json_object_get(line, "type")), "sessions");
	const json_t *all = json_object_get(line, "sessions");
	CHECK_INT(json_array_size(all), THREADS);
	const json_t *second = json_array_get(all, 1);
	CHECK_INT(json_integer_value(json_object_get(second, "connection")), 1001);
	CHECK_STRING(json_string_value(json_object_get(second, "user")), "\xef\xbf\xbd(\"\\");
	CHECK(json_is_null(json_object_get(second, "database")));
	CHECK(json_is_false(json_object_get(second, "last")));
	const json_t *first = json_array_get(all, 0);
	CHECK_STRING(json_string_value(json_object_get(first, "statement")), "UPDATE t SET a = 1");
	json_decref(line);
	stall_json_deinit(&json);
	stall_sessions_deinit(&sessions);
}

static const char *const statements[] = {
	"UPDATE accounts SET balance = balance - 100 WHERE id = 17",
	"COMMIT",
};
static const char *const names[] = {"first_user", "second"};

#define BARRIER() __asm__ volatile("" ::: "memory")

// Most statements, and most times between them, are shorter than a read of all fields; a few are long
// enough on any machine.
static void dwell(unsigned turn)
{
	int rounds = turn % 16384 < 16382 ? 300 : 300000;

	for (volatile int i = 0; i < rounds; i++)
		;
}

// As servers do: a statement is copied to the same address each time, after its start is known, and
// its pointer is taken away at its end.
static void run_statements(void)
{
	static unsigned turn;
	struct object *object = &shared->objects[1];
	char *block = &shared->texts[16384];
	const char *text = statements[turn % 2];
	size_t length = strlen(text);

	object->command = 3;
	object->start++;
	BARRIER();
	object->user = object->user_2 = names[turn % 2];
	memcpy(block + 16, text, length + 1);
	BARRIER();
	object->query = block + 16;
	object->query_length = length;
	BARRIER();
	dwell(turn);
	object->query = NULL;
	object->query_length = 0;
	BARRIER();
	object->command = 0;
	dwell(turn);
	turn++;
}

static bool is_one_of(const char *bytes, size_t size, const char *const texts[2])
{
	return (size == strlen(texts[0]) && !memcmp(bytes, texts[0], size)) ||
	       (size == strlen(texts[1]) && !memcmp(bytes, texts[1], size));
}

// Without the start of a statement, which says that it is still the same one, fewer are known.
static void test_objects_that_change(bool with_start)
{
	int running = 0, idle = 0, unknown = 0, wrong = 0;

	begin(run_statements);
	if (!with_start)
		CHECK_OK(stall_layout_add(&layout, "thd.start=-1"));
	add_key("thd.last=%zu thd.last#delta=16", AT(last));
	shared->objects[1].last = &shared->texts[16384];
	while (__atomic_load_n(&shared->objects[1].user, __ATOMIC_RELAXED) != names[1])
		usleep(1000);
	for (int i = 0; i < FLIPS; i++) {
		struct stall_sessions sessions = read_all();

		for (size_t j = 0; j < sessions.count; j++) {
			const struct stall_session *session = &sessions.sessions[j];

			if (session->thread != 1)
				continue;
			wrong += session->user[0] &&
				 !is_one_of(session->user, strlen(session->user), names);
			running += session->statement && !session->last;
			idle += session->statement && session->last;
			unknown += !session->statement;
			if (session->statement &&
			    !is_one_of(session->statement, session->statement_size, statements) &&
			    ++wrong < 5)
				fprintf(stderr, "%s: %.*s\n", session->last ? "last" : "query",
					(int)session->statement_size, session->statement);
		}
		stall_sessions_deinit(&sessions);
	}
	printf("%d running, %d idle, %d without a statement\n", running, idle, unknown);
	CHECK_INT(wrong, 0);
	CHECK(running > 0);
	CHECK_INT(idle > 0, with_start);
	end();
}

static void test_texts_without_a_start(void)
{
	struct stall_session session;

	CHECK_OK(stall_layout_add(&layout, "thd.start=-1"));
	session = look();
	CHECK_INT(session.statement_size, 18);
	CHECK(session.age_ns == UINT64_MAX);
	reset(1)->query_length = 17; // of another statement
	CHECK(!look().statement);
	reset(1)->query_length = 30;
	CHECK(!look().statement);
	memset(shared->big, 'S', 4096);
	shared->big[4096] = '\0';
	reset(1)->query = shared->big;
	shared->objects[1].query_length = 4096;
	session = look();
	CHECK(session.statement && session.statement_size == 4096 && !session.cut);
	shared->objects[1].query_length = 16 << 20;
	session = look();
	CHECK(session.statement && session.statement_size == 4096 && session.cut);
	shared->big[4095] = '\0';
	CHECK(!look().statement);
	add_key("thd.last=%zu thd.last#delta=0", AT(last));
	rest()->last = (char *)put_text("SELECT 1", 9);
	CHECK(!look().statement);
	CHECK_OK(stall_layout_add(&layout, "thd.start=0"));
	CHECK(look().statement != NULL);
}

// The process ends while it is read, or has no such memory any more.
static void test_a_process_that_has_ended(void)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	struct stall_sessions sessions = read_all();
	CHECK_INT(sessions.count, 0);
	stall_sessions_deinit(&sessions);
}

int main(int argc, char **argv)
{
	static void (*const tests[])(void) = {
		test_all_fields,
		test_no_connection,
		test_names,
		test_numbers,
		test_statements,
		test_last_statements,
		test_last_statements_of_a_second_object,
		test_last_statements_of_others,
		test_idle_time,
		test_places_of_a_thread,
		test_many,
		test_layouts_of_others,
		test_line,
		test_texts_without_a_start,
		test_a_process_that_has_ended,
	};

	if (argc > 1) { // "changing"
		test_objects_that_change(true);
		test_objects_that_change(false);
		return check_done();
	}
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		begin(NULL);
		tests[i]();
		end();
	}
	return check_done();
}

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
#include "snapshot/read_child.h"

#define PAGE 4096UL
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
static pid_t child;

static void describe(struct stall_layout *layout)
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
	CHECK_OK(stall_layout_add(layout, text));
}

static void add_last(struct stall_layout *layout, const char *more)
{
	char text[256];

	snprintf(text, sizeof(text), "thd.last=%d %s", AT(last), more);
	CHECK_OK(stall_layout_add(layout, text));
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
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	pages = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	mprotect(pages + 3 * PAGE, PAGE, PROT_NONE);
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
	munmap(pages, 4 * PAGE);
}

static struct stall_sessions read_all(const struct stall_layout *layout)
{
	struct stall_sessions sessions = {};

	arena.used = arena.used > (8 << 20) ? 4 << 20 : arena.used; // of earlier reads
	CHECK_OK(stall_sessions_read(snapshot, layout, &sessions));
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
	struct stall_layout layout = {};

	begin(NULL);
	describe(&layout);
	for (int i = 0; i < THREADS; i++)
		reset(i);
	snapshot->begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_sessions sessions = read_all(&layout);
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
	sessions = read_all(&layout);
	CHECK_INT(sessions.count, 2);
	CHECK_INT(sessions.rejected, 0);
	CHECK(sessions.count == 2 && sessions.sessions[0].thread == 0 &&
	      sessions.sessions[1].thread == 3);
	stall_sessions_deinit(&sessions);

	// Without what says that an object is a connection nothing is read.
	struct stall_layout less = {};
	CHECK_OK(stall_layout_add(&less, "thd.tls=-64 thd.id=8"));
	sessions = read_all(&less);
	CHECK_INT(sessions.count + sessions.rejected, 0);
	stall_sessions_deinit(&sessions);
	stall_layout_deinit(&less);
	stall_layout_deinit(&layout);
	end();
}

// The second of four is damaged; whatever is in it, the others stay right.
static struct stall_session read_damaged(const struct stall_layout *layout, bool *ret_is)
{
	struct stall_session found = {};
	struct stall_sessions sessions = read_all(layout);

	*ret_is = false;
	CHECK_INT(sessions.count + sessions.rejected <= THREADS, true);
	for (size_t i = 0; i < sessions.count; i++) {
		if (sessions.sessions[i].thread == 1) {
			found = sessions.sessions[i];
			*ret_is = true;
		} else {
			check_known(&sessions.sessions[i], sessions.sessions[i].thread);
		}
	}
	CHECK_INT(sessions.count - *ret_is, THREADS - 1);
	stall_sessions_deinit(&sessions);
	return found;
}

static void test_no_connection(void)
{
	struct stall_layout layout = {};
	bool is;

	begin(NULL);
	describe(&layout);
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
		read_damaged(&layout, &is);
		CHECK(!is);
	}
	reset(1)->self++;
	read_damaged(&layout, &is);
	CHECK(!is);
	reset(1)->id = 0;
	shared->objects[1].id_2 = 0;
	read_damaged(&layout, &is);
	CHECK(!is);
	reset(1)->id_2 = 77;
	read_damaged(&layout, &is);
	CHECK(!is);

	// An object at the very end of a mapping is whole.
	struct object *last = (struct object *)(pages + 3 * PAGE) - 1;
	*last = *reset(1);
	shared->threads[1].object = last;
	struct stall_session session = read_damaged(&layout, &is);
	CHECK(is);
	check_known(&session, 1);
	stall_layout_deinit(&layout);
	end();
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
	struct stall_layout layout = {};
	struct stall_session session;
	char name[300];
	bool is;

	begin(NULL);
	describe(&layout);
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
		session = read_damaged(&layout, &is);
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
	CHECK_STRING(read_damaged(&layout, &is).state, "");
	name[STALL_SESSION_NAME - 1] = '\0';
	reset(1)->state = put_text(name, STALL_SESSION_NAME);
	CHECK_STRING(read_damaged(&layout, &is).state, name);

	// A text that ends with its mapping, and one that goes on behind it.
	memcpy(pages + 3 * PAGE - 4, "end", 4);
	reset(1)->state = (char *)pages + 3 * PAGE - 4;
	CHECK_STRING(read_damaged(&layout, &is).state, "end");
	pages[3 * PAGE - 1] = 'x';
	CHECK_STRING(read_damaged(&layout, &is).state, "");

	static const uint32_t lengths[] = {127, 128, 4096, INT32_MAX, UINT32_MAX};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		reset(1)->database_length = lengths[i];
		CHECK_STRING(read_damaged(&layout, &is).database, "");
	}
	reset(1)->database_length = 0;
	CHECK_STRING(read_damaged(&layout, &is).database, "");

	// Places that disagree, and one that has none.
	strcpy(&shared->texts[1024 + 256], "root");
	reset(1)->user_2 = put_text("root", 5);
	CHECK_STRING(read_damaged(&layout, &is).user, "");
	reset(1)->user_2 = put_text("apple", 6);
	CHECK_STRING(read_damaged(&layout, &is).user, "");
	reset(1)->user_2 = NULL;
	CHECK_STRING(read_damaged(&layout, &is).user, "");
	reset(1)->user = NULL;
	CHECK_STRING(read_damaged(&layout, &is).user, "");
	shared->objects[1].user_2 = NULL;
	CHECK_STRING(read_damaged(&layout, &is).user, "");
	// A client without a name has an address alone.
	reset(1)->host = NULL;
	CHECK_STRING(read_damaged(&layout, &is).host, "10.0.0.7");
	shared->objects[1].host_2 = NULL;
	CHECK_STRING(read_damaged(&layout, &is).host, "");
	reset(1)->host_2 = put_text("10.0.0.8", 9);
	CHECK_STRING(read_damaged(&layout, &is).host, "");
	stall_layout_deinit(&layout);
	end();
}

static void test_numbers(void)
{
	struct stall_layout layout = {};
	struct stall_session session;
	bool is;

	begin(NULL);
	describe(&layout);
	snapshot->begun_ns = stall_clock_ns(CLOCK_MONOTONIC);
	reset(1)->command = 256;
	shared->objects[1].status = 0xfffffffe;
	session = read_damaged(&layout, &is);
	CHECK_INT(session.command, -1);
	CHECK_INT(session.transaction, 0);
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC) / 1000;
	// Never begun, long before the machine, and hours ahead: a clock that was set, or no time.
	const uint64_t starts[] = {0, UINT64_MAX, UINT64_MAX / 1000, UINT64_C(1) << 63,
				   now + 7200000000};
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		reset(1)->start = starts[i];
		session = read_damaged(&layout, &is);
		CHECK(is);
		CHECK(session.age_ns == UINT64_MAX);
	}
	// Since the capture began.
	reset(1)->start = now + 1000;
	CHECK_INT(read_damaged(&layout, &is).age_ns, 0);
	stall_layout_deinit(&layout);
	end();
}

static void test_statements(void)
{
	struct stall_layout layout = {};
	struct stall_session session;
	bool is;

	begin(NULL);
	describe(&layout);
	memset(shared->big, 'S', sizeof(shared->big));
	static const uint32_t lengths[] = {4095, 4096, 4097, 16 << 20, UINT32_MAX};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint32_t length = lengths[i];
		struct object *object = reset(1);

		object->query = shared->big;
		object->query_length = length;
		session = read_damaged(&layout, &is);
		CHECK_INT(session.statement_size, length < 4096 ? length : 4096);
		CHECK_INT(session.cut, length > 4096);
		CHECK(session.statement && session.statement[0] == 'S');
	}
	// Any bytes are a statement: its length says where it ends.
	static const char binary[] = "INSERT '\0\xff\xfe\x1b[2J\xc3";
	struct object *object = reset(1);
	object->query = put_text(binary, sizeof(binary));
	object->query_length = sizeof(binary);
	session = read_damaged(&layout, &is);
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
		session = read_damaged(&layout, &is);
		CHECK(is && !session.statement);
		CHECK_STRING(session.user, "app");
	}
	reset(1)->query_length = 0;
	session = read_damaged(&layout, &is);
	CHECK(is && !session.statement);
	stall_layout_deinit(&layout);
	end();
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
	struct stall_layout layout = {};
	struct stall_session session;
	bool is;

	begin(NULL);
	describe(&layout);
	add_last(&layout, "thd.last#delta=5");
	rest()->last = (char *)put_text("\x0b\0\0\0\3SELECT * t", 16);
	session = read_damaged(&layout, &is);
	CHECK(session.statement && session.last && !session.cut);
	CHECK_INT(session.statement_size, 10);
	CHECK(session.statement && !memcmp(session.statement, "SELECT * t", 10));

	// That of a connection that has ended is nobody's.
	shared->objects[1].user = NULL;
	CHECK(is && read_damaged(&layout, &is).statement);
	shared->objects[1].user_2 = NULL;
	CHECK(is && !read_damaged(&layout, &is).connection && !is);

	// Not of a connection that runs something, and none that binary data is in its place.
	rest()->last = (char *)put_text("\x0b\0\0\0\3SELECT * t", 16);
	shared->objects[1].command = 3;
	CHECK(!read_damaged(&layout, &is).statement);
	rest()->last = (char *)put_text("12345SELECT \1", 14);
	CHECK(!read_damaged(&layout, &is).statement);
	rest()->last = (char *)put_text("12345", 6);
	CHECK(!read_damaged(&layout, &is).statement);
	rest()->last = (char *)UINT64_MAX;
	CHECK(!read_damaged(&layout, &is).statement);
	rest()->last = NULL;
	CHECK(is && !read_damaged(&layout, &is).statement);
	memset(shared->big, 'S', sizeof(shared->big));
	rest()->last = shared->big;
	session = read_damaged(&layout, &is);
	CHECK(session.cut && session.last);
	CHECK_INT(session.statement_size, 4096);
	// It goes on behind the end of the mapping, and has no end there.
	memset(pages + 3 * PAGE - 64, 'S', 64);
	rest()->last = pages + 3 * PAGE - 64;
	CHECK(!read_damaged(&layout, &is).statement);
	pages[3 * PAGE - 1] = '\0';
	CHECK_INT(read_damaged(&layout, &is).statement_size, 64 - 5 - 1);
	stall_layout_deinit(&layout);
	end();
}

static void test_last_statements_of_a_second_object(void)
{
	struct stall_layout layout = {};
	struct stall_session session;
	bool is;

	begin(NULL);
	describe(&layout);
	char more[64];
	snprintf(more, sizeof(more), "thd.last.1=%zu thd.last#length=%zu",
		 offsetof(struct second, text), offsetof(struct second, length));
	add_last(&layout, more);
	struct second *second = &shared->second;
	*second = (struct second){.text = put_text("COMMIT; and more", 17), .length = 6};
	rest()->last = second;
	session = read_damaged(&layout, &is);
	CHECK(session.last && !session.cut && session.statement_size == 6);
	second->length = UINT32_MAX;
	session = read_damaged(&layout, &is);
	CHECK(!session.statement || session.statement_size <= 4096);
	second->length = 0;
	CHECK(!read_damaged(&layout, &is).statement);
	second->text = (char *)pages + 3 * PAGE;
	second->length = 6;
	CHECK(!read_damaged(&layout, &is).statement);
	rest()->last = pages + 3 * PAGE - 8;
	CHECK(!read_damaged(&layout, &is).statement);
	rest()->last = &shared->objects[1];
	read_damaged(&layout, &is);
	stall_layout_deinit(&layout);
	end();
}

// Until a connection has run a statement, its object can have what an earlier connection left there.
static void test_last_statements_of_others(void)
{
	struct stall_layout layout = {};
	bool is;

	begin(NULL);
	describe(&layout);
	char more[256];
	snprintf(more, sizeof(more),
		 "thd.start#clock=0 thd.last.1=%zu thd.last#length=%zu thd.last#begun=%d "
		 "thd.last.1#begun=%zu",
		 offsetof(struct second, text), offsetof(struct second, length), AT(begun),
		 offsetof(struct second, begun));
	add_last(&layout, more);
	uint64_t now = stall_clock_ns(CLOCK_REALTIME);
	snapshot->wall_ns = now;
	struct second *second = &shared->second;
	*second = (struct second){.text = put_text("COMMIT", 7), .length = 6, .begun = now};
	struct object *object = rest();
	object->last = second;
	object->start = now / 1000;
	object->begun = now;
	CHECK(read_damaged(&layout, &is).statement != NULL);
	// The pointer is to what another one runs meanwhile.
	second->begun = now + 1;
	CHECK(is && !read_damaged(&layout, &is).statement);
	second->begun = now;
	// It is from before the connection's last command.
	object->start = now / 1000 + 6000;
	CHECK(is && !read_damaged(&layout, &is).statement);
	object->start = now / 1000 - 6000;
	CHECK(is && !read_damaged(&layout, &is).statement);
	object->start = now / 1000 - 100;
	CHECK(read_damaged(&layout, &is).statement != NULL);
	object->last = pages + 3 * PAGE - 12;
	CHECK(is && !read_damaged(&layout, &is).statement);
	stall_layout_deinit(&layout);
	end();
}

static void test_idle_time(void)
{
	struct stall_layout layout = {};
	char more[64];
	bool is;

	begin(NULL);
	describe(&layout);
	snprintf(more, sizeof(more), "thd.idle=%d thd.idle#clock=1", AT(idle));
	CHECK_OK(stall_layout_add(&layout, more));
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC) / 1000;
	snapshot->begun_ns = now * 1000;
	struct object *object = rest();
	object->start = now - 5000000;
	object->idle = now - 2000000;
	CHECK_INT(read_damaged(&layout, &is).age_ns, 2000000000);
	// A later command that is no statement.
	object->idle = now - 7000000;
	CHECK_INT(read_damaged(&layout, &is).age_ns, 5000000000);
	object->idle = 0;
	CHECK_INT(read_damaged(&layout, &is).age_ns, 5000000000);
	// Not of one that runs something.
	object = reset(1);
	object->start = now - 5000000;
	object->idle = now - 2000000;
	CHECK_INT(read_damaged(&layout, &is).age_ns, 5000000000);
	stall_layout_deinit(&layout);
	end();
}

// One of two places names the thread, near the other fields or far from them.
static void test_places_of_a_thread(void)
{
	static const char *const keys[] = {"thd.self.2=%d thd.self=%d",
					   "thd.self.2=%d thd.self.3=%d"};

	for (int i = 0; i < 2; i++) {
		struct stall_layout layout = {};
		struct stall_session session;
		char more[64];
		bool is;

		begin(NULL);
		describe(&layout);
		snprintf(more, sizeof(more), keys[i], AT(self_2), i ? AT(begun) : AT(self));
		CHECK_OK(stall_layout_add(&layout, more));
		struct object *object = reset(1);
		uint64_t block = object->self;
		object->self = 0;
		object->self_2 = block;
		session = read_damaged(&layout, &is);
		CHECK(is);
		check_known(&session, 1);
		object->self_2 = block + 1;
		read_damaged(&layout, &is);
		CHECK(!is);
		object->begun = block;
		read_damaged(&layout, &is);
		CHECK_INT(is, i == 1);
		stall_layout_deinit(&layout);
		end();
	}
}

// More than are read at a time, some with the same texts, of which a few are no connections.
static void test_many(void)
{
	enum { MANY = 700 };
	struct stall_layout layout = {};
	size_t at = 0;

	begin(NULL);
	describe(&layout);
	free(snapshot->threads);
	snapshot->threads = calloc(MANY, sizeof(*snapshot->threads));
	snapshot->thread_count = MANY;
	for (int i = 0; i < MANY; i++)
		snapshot->threads[i].fs_base =
			i % 7 ? (uintptr_t)shared->threads[i % THREADS].block : (uintptr_t)pages;
	struct stall_sessions sessions = read_all(&layout);
	CHECK_INT(sessions.count, MANY - MANY / 7);
	for (size_t i = 0; i < sessions.count; i++, at++) {
		struct stall_session session = sessions.sessions[i];

		at += at % 7 == 0;
		CHECK_INT(session.thread, at);
		session.thread = at % THREADS;
		check_known(&session, session.thread);
	}
	stall_sessions_deinit(&sessions);
	stall_layout_deinit(&layout);
	end();
}

// Offsets that no build has: nothing is read there, and nothing breaks.
static void test_layouts_of_others(void)
{
	static const char *const cases[] = {
		"thd.tls=1048577", "thd.tls=-9223372036854775808", "thd.self=-1",
		"thd.id=1048576",  "thd.self=9223372036854775807",
	};

	begin(NULL);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stall_layout layout = {};

		describe(&layout);
		CHECK_OK(stall_layout_add(&layout, cases[i]));
		struct stall_sessions sessions = read_all(&layout);
		CHECK_INT(sessions.count, 0);
		stall_sessions_deinit(&sessions);
		stall_layout_deinit(&layout);
	}
	// Keys of no use are left alone; a far field is a field, and behind it there is nothing.
	struct stall_layout layout = {};
	describe(&layout);
	CHECK_OK(stall_layout_add(&layout, "thd.host#length=3 thd.state=-8 thd.last#delta=-4 "
					   "thd.unknown=5 thd.database=1048568"));
	struct object *last = (struct object *)(pages + 3 * PAGE) - 1;
	*last = *reset(3);
	shared->threads[3].object = last;
	struct stall_sessions sessions = read_all(&layout);
	// AddressSanitizer has its own memory a megabyte further.
#ifndef __SANITIZE_ADDRESS__
	CHECK_INT(sessions.count, THREADS - 1);
	CHECK_INT(sessions.rejected, 1);
#endif
	for (size_t i = 0; i < sessions.count; i++) {
		CHECK_STRING(sessions.sessions[i].user, "app");
		CHECK_STRING(sessions.sessions[i].host, ""); // its end is not known
		CHECK_STRING(sessions.sessions[i].database, "");
		CHECK_STRING(sessions.sessions[i].state, "");
	}
	stall_sessions_deinit(&sessions);
	stall_layout_deinit(&layout);
	end();
}

static void test_line(void)
{
	struct stall_layout layout = {};
	struct stall_json json;
	json_error_t error;

	begin(NULL);
	describe(&layout);
	static const char binary[] = "INSERT \"\0\xff\xfe\x1b[2J\n\xc3";
	reset(1)->query = put_text(binary, sizeof(binary));
	shared->objects[1].query_length = sizeof(binary);
	shared->objects[1].database = NULL;
	char *user = &shared->texts[1024];
	strcpy(user, "\xc3\x28\"\\");
	shared->objects[1].user_2 = user;
	struct stall_sessions sessions = read_all(&layout);
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
	stall_layout_deinit(&layout);
	end();
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
	struct stall_layout layout = {};
	int running = 0, idle = 0, unknown = 0, wrong = 0;

	begin(run_statements);
	describe(&layout);
	if (!with_start)
		CHECK_OK(stall_layout_add(&layout, "thd.start=-1"));
	add_last(&layout, "thd.last#delta=16");
	shared->objects[1].last = &shared->texts[16384];
	while (__atomic_load_n(&shared->objects[1].user, __ATOMIC_RELAXED) != names[1])
		usleep(1000);
	for (int i = 0; i < FLIPS; i++) {
		struct stall_sessions sessions = read_all(&layout);

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
	stall_layout_deinit(&layout);
	end();
}

static void test_texts_without_a_start(void)
{
	struct stall_layout layout = {};
	struct stall_session session;
	bool is;

	begin(NULL);
	describe(&layout);
	CHECK_OK(stall_layout_add(&layout, "thd.start=-1"));
	session = read_damaged(&layout, &is);
	CHECK_INT(session.statement_size, 18);
	CHECK(session.age_ns == UINT64_MAX);
	reset(1)->query_length = 17; // of another statement
	CHECK(!read_damaged(&layout, &is).statement);
	reset(1)->query_length = 30;
	CHECK(!read_damaged(&layout, &is).statement);
	memset(shared->big, 'S', 4096);
	shared->big[4096] = '\0';
	reset(1)->query = shared->big;
	shared->objects[1].query_length = 4096;
	session = read_damaged(&layout, &is);
	CHECK(session.statement && session.statement_size == 4096 && !session.cut);
	shared->objects[1].query_length = 16 << 20;
	session = read_damaged(&layout, &is);
	CHECK(session.statement && session.statement_size == 4096 && session.cut);
	shared->big[4095] = '\0';
	CHECK(!read_damaged(&layout, &is).statement);
	add_last(&layout, "thd.last#delta=0");
	rest()->last = (char *)put_text("SELECT 1", 9);
	CHECK(!read_damaged(&layout, &is).statement);
	CHECK_OK(stall_layout_add(&layout, "thd.start=0"));
	CHECK(read_damaged(&layout, &is).statement != NULL);
	stall_layout_deinit(&layout);
	end();
}

// The process ends while it is read, or has no such memory any more.
static void test_a_process_that_has_ended(void)
{
	struct stall_layout layout = {};

	begin(NULL);
	describe(&layout);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	struct stall_sessions sessions = read_all(&layout);
	CHECK_INT(sessions.count, 0);
	stall_sessions_deinit(&sessions);
	stall_layout_deinit(&layout);
	end();
}

int main(void)
{
	test_all_fields();
	test_no_connection();
	test_names();
	test_numbers();
	test_statements();
	test_last_statements();
	test_last_statements_of_a_second_object();
	test_last_statements_of_others();
	test_idle_time();
	test_places_of_a_thread();
	test_many();
	test_layouts_of_others();
	test_line();
	test_objects_that_change(true);
	test_objects_that_change(false);
	test_texts_without_a_start();
	test_a_process_that_has_ended();
	return check_done();
}

// SPDX-License-Identifier: Apache-2.0
// Backends and locks of PostgreSQL, read from images of its shared memory, whole and damaged.
#include <netinet/in.h>
#include <stdlib.h>

#include "base/layout.h"
#include "check.h"
#include "introspect/postgres_entries.h"
#include "introspect/postgres_locks.h"
#include "postgres_image.h"

static const int versions[] = {906, 1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800};
#define VERSIONS (int)(sizeof(versions) / sizeof(*versions))

static uint32_t idle_of(int version)
{
	return version >= 1800 ? 2 : 1;
}

static uint32_t client_of(int version)
{
	return version >= 1700 ? 1 : version >= 1600 ? 4 : version >= 1300 ? 3 : 2;
}

// Backends: 0 to 5 serve clients, two PGPROCs and entries are of no process of the snapshot.
static struct postgres_image *make(int version)
{
	struct postgres_image *image = image_create(version);
	uint32_t idle = idle_of(version), client = client_of(version);

	for (int i = 0; i < IMAGE_BACKENDS; i++)
		image_backend(image, i, client, idle, "SELECT 'idle'");
	image_backend(image, 1, client, idle + 1, "UPDATE t SET a = 1");
	image_backend(image, 2, client, idle + 2, "INSERT INTO t VALUES (1)");
	image_u64(image_entry(image, 2) + image->layout.xact_start, image_time(50));
	image_backend(image, IMAGE_BACKENDS, client, idle, "SELECT 'of nobody'");
	return image;
}

struct result {
	struct stall_sessions sessions;
	struct stall_postgres_waits waits;
	bool found;
};

static struct result read_image(struct postgres_image *image, const struct stall_layout *layout)
{
	struct stall_postgres_server server;
	struct result result = {};

	CHECK_OK(stall_postgres_server_init(&server, &image->snapshot, image->symbols, layout,
					    image->backends, IMAGE_BACKENDS, &result.found));
	if (result.found) {
		CHECK_OK(stall_postgres_read_procs(&server));
		CHECK_OK(stall_postgres_read_entries(&server, &result.sessions));
		CHECK_OK(stall_postgres_read_locks(&server, &result.waits));
	}
	stall_postgres_server_deinit(&server);
	return result;
}

static void result_deinit(struct result *result)
{
	stall_sessions_deinit(&result->sessions);
	stall_postgres_waits_deinit(&result->waits);
}

static const struct stall_session *session_of(const struct result *result, int slot)
{
	for (size_t i = 0; i < result->sessions.count; i++)
		if (result->sessions.sessions[i].connection == (uint64_t)IMAGE_FIRST_PID + slot)
			return &result->sessions.sessions[i];
	return NULL;
}

static bool says(const struct stall_session *session, const char *statement)
{
	return session && session->statement && session->statement_size == strlen(statement) &&
	       !memcmp(session->statement, statement, session->statement_size);
}

static void test_every_version(void)
{
	for (int i = 0; i < VERSIONS; i++) {
		struct postgres_image *image = make(versions[i]);
		struct result result = read_image(image, NULL);
		CHECK(result.found);
		CHECK_INT(result.sessions.count, IMAGE_BACKENDS);
		CHECK_INT(result.sessions.rejected, 0);
		const struct stall_session *idle = session_of(&result, 0),
					   *active = session_of(&result, 1),
					   *open = session_of(&result, 2);
		if (idle && active && open) {
			CHECK(says(idle, "SELECT 'idle'") && idle->last && !idle->cut);
			CHECK_STRING(idle->state, "idle");
			CHECK_INT(idle->transaction, 0);
			CHECK_INT(idle->age_ns, 2000000000);
			CHECK(says(active, "UPDATE t SET a = 1") && !active->last);
			CHECK_STRING(active->state, "active");
			CHECK_STRING(active->application, "app 1");
			CHECK_STRING(active->host, "[local]");
			CHECK_INT(active->age_ns, 3000000000);
			CHECK_INT(active->thread, 1);
			CHECK_STRING(open->state, "idle in transaction");
			CHECK_INT(open->transaction, 1);
			if (versions[i] >= 1000)
				CHECK_STRING(open->command_name, "client backend");
		}
		CHECK(!session_of(&result, IMAGE_BACKENDS));
		result_deinit(&result);
		image_destroy(image);
	}
}

static void test_hosts(void)
{
	struct postgres_image *image = make(1700);
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000207)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};

	memcpy(image_entry(image, 0) + image->layout.client, &v4, sizeof(v4));
	memcpy(image_entry(image, 1) + image->layout.client, &v6, sizeof(v6));
	memset(image_entry(image, 2) + image->layout.client, 0, sizeof(v6));
	struct result result = read_image(image, NULL);
	CHECK_STRING(session_of(&result, 0)->host, "10.0.2.7");
	CHECK_STRING(session_of(&result, 1)->host, "::1");
	CHECK_STRING(session_of(&result, 2)->host, "");
	CHECK_STRING(session_of(&result, 3)->host, "[local]");
	result_deinit(&result);
	image_destroy(image);
}

// The version is not one of a list: other numbers of states would be taken for those of another one.
static void test_layout(void)
{
	uint64_t symbols[STALL_PG_SYMBOLS];
	struct stall_postgres_layout chosen;
	enum stall_postgres_state state;

	for (int i = 0; i < VERSIONS; i++) {
		image_symbols(versions[i], true, symbols);
		CHECK(stall_postgres_layout_choose(symbols, NULL, &chosen));
		CHECK_INT(chosen.version, versions[i]);
		CHECK(stall_postgres_state(&chosen, idle_of(versions[i]), &state));
		CHECK_INT(state, STALL_PG_IDLE);
		CHECK(!stall_postgres_state(&chosen, idle_of(versions[i]) + 6, &state));
		CHECK(!stall_postgres_state(&chosen, UINT32_MAX, &state));
		CHECK(!stall_postgres_type(&chosen, 1000));
	}
	symbols[STALL_PG_PROC] = 0;
	CHECK(!stall_postgres_layout_choose(symbols, NULL, &chosen));
	CHECK_STRING(stall_postgres_wait_class(0x03000005), "Lock");
	CHECK(!stall_postgres_wait_class(0));
	CHECK(!stall_postgres_wait_class(0xff000000));
}

static void test_keys(void)
{
	static const struct {
		const char *text;
		bool accepted;
	} cases[] = {
		{"PGPROC.pid=68", true},
		{"PgBackendStatus#size=448", true},
		{"PgBackendStatus#size=-8", false},
		{"PgBackendStatus#size=4", false},
		{"PgBackendStatus#size=447", false},
		{"PgBackendStatus.st_state=430", false},
		{"PgBackendStatus.st_clientaddr=420", false},
		{"PgBackendStatus.st_procpid=-4", false},
		{"PGPROC.waitLock=5000", false},
		{"PGPROC.waitLock=136", false}, // apart from waitProcLock
		{"other.key=-1", true},
	};
	uint64_t symbols[STALL_PG_SYMBOLS];
	struct stall_postgres_layout chosen;

	image_symbols(1700, true, symbols);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct stall_layout layout = {};

		CHECK_OK(stall_layout_add(&layout, cases[i].text));
		CHECK_INT(stall_postgres_layout_choose(symbols, &layout, &chosen),
			  cases[i].accepted);
		stall_layout_deinit(&layout);
	}
}

// A layout that was given wins: with a wrong one there is nothing.
static void test_given_layout(void)
{
	struct postgres_image *image = make(1700);
	struct stall_layout layout = {};

	CHECK_OK(stall_layout_add(&layout, "PgBackendStatus.st_state=24"));
	struct result result = read_image(image, &layout);
	CHECK_INT(result.sessions.count, 0);
	CHECK_INT(result.sessions.rejected, IMAGE_BACKENDS);
	result_deinit(&result);
	stall_layout_deinit(&layout);
	image_destroy(image);
}

// One entry that cannot be one: nothing of the server is believed.
static void test_no_entries(void)
{
	enum damage { STATE, TYPE, TIME, NO_START, FAMILY, POINTER, NAME, END, DAMAGES };

	for (enum damage damage = STATE; damage < DAMAGES; damage++) {
		struct postgres_image *image = make(1700);
		const struct stall_postgres_layout *layout = &image->layout;
		uint8_t *entry = image_entry(image, 3);

		if (damage == STATE)
			image_u32(entry + layout->state, 7);
		if (damage == TYPE)
			image_u32(entry + layout->type, 77);
		if (damage == TIME)
			image_u64(entry + layout->activity_start, image_time(0) + 200000000000);
		if (damage == NO_START)
			image_u64(entry + layout->proc_start, 0);
		if (damage == FAMILY)
			entry[layout->client] = 99;
		if (damage == POINTER)
			image_u64(entry + layout->activity, 0x1000);
		if (damage == NAME)
			memset(image->names + 3 * IMAGE_NAME, 'x', IMAGE_NAME);
		if (damage == END)
			memset(image->texts + 3 * IMAGE_TEXT, 'x', IMAGE_TEXT);
		struct result result = read_image(image, NULL);
		CHECK_INT(result.sessions.count, 0);
		CHECK_INT(result.sessions.rejected, IMAGE_BACKENDS);
		result_deinit(&result);
		image_destroy(image);
	}
}

// What one backend alone does not give.
static void test_one_rejected(void)
{
	struct postgres_image *image = make(1700);
	const struct stall_postgres_layout *layout = &image->layout;

	image_u32(image_entry(image, 0) + layout->change_count, 21); // it is being written
	image_u32(image_entry(image, IMAGE_BACKENDS) + layout->pid, IMAGE_FIRST_PID + 1); // two
	image_u32(image_entry(image, 3) + layout->pid, 0); // it ended
	image->texts[4 * IMAGE_TEXT] = 0x01;
	image_u32(image_entry(image, 5) + layout->state, 6); // disabled
	image->threads[6].unchanged = true;
	struct result result = read_image(image, NULL);
	CHECK(!session_of(&result, 0));
	CHECK(!session_of(&result, 1));
	CHECK(!session_of(&result, 3));
	CHECK(session_of(&result, 4) && !session_of(&result, 4)->statement);
	CHECK(session_of(&result, 5) && !session_of(&result, 5)->statement);
	CHECK(session_of(&result, 5) && session_of(&result, 5)->transaction == -1);
	CHECK(!session_of(&result, 6));
	CHECK(session_of(&result, 7));
	CHECK_INT(result.sessions.rejected, 2);
	result_deinit(&result);
	image_destroy(image);
}

static void test_cut_statement(void)
{
	struct postgres_image *image = make(1600);

	memset(image->texts + IMAGE_TEXT, 'x', IMAGE_TEXT - 1);
	struct result result = read_image(image, NULL);
	CHECK(session_of(&result, 1) && session_of(&result, 1)->cut);
	CHECK(session_of(&result, 1) && session_of(&result, 1)->statement_size == IMAGE_TEXT - 1);
	CHECK(session_of(&result, 0) && !session_of(&result, 0)->cut);
	result_deinit(&result);
	image_destroy(image);
}

// A backend that has a statement while its state says idle: the numbers of the states are others.
static void test_other_states(void)
{
	struct postgres_image *image = make(1700);

	image->variables->query = 0x7f0000001000;
	struct result result = read_image(image, NULL);
	CHECK_INT(result.sessions.count, 0);
	result_deinit(&result);
	image_destroy(image);
}

// A pointer that is not the backend's own, or several that can be.
static void test_search(void)
{
	struct postgres_image *image = make(1200);
	uint64_t own = image->variables->entry;

	image->variables->entry = 0;
	struct result result = read_image(image, NULL);
	CHECK_INT(result.sessions.count, 0);
	result_deinit(&result);
	image->variables->entry = own;
	image->variables->port = (uint64_t)(image->shared + 64);
	image_u32(image->shared + 68, IMAGE_FIRST_PID + IMAGE_BACKENDS - 1);
	result = read_image(image, NULL);
	CHECK_INT(result.sessions.count, 0);
	result_deinit(&result);
	image_destroy(image);
}

static const struct stall_postgres_wait *wait_of(const struct result *result, uint32_t thread)
{
	for (size_t i = 0; i < result->waits.count; i++)
		if (result->waits.waits[i].thread == thread)
			return &result->waits.waits[i];
	return NULL;
}

static uint32_t owner_of(const struct result *result, uint32_t thread)
{
	const struct stall_postgres_wait *wait = wait_of(result, thread);

	return wait ? wait->owner : UINT32_MAX - 1;
}

#define ACCESS_SHARE 1
#define ROW_EXCLUSIVE 3
#define SHARE 5
#define EXCLUSIVE 7
#define ACCESS_EXCLUSIVE 8

static void test_locks(void)
{
	for (int i = 0; i < VERSIONS; i++) {
		struct postgres_image *image = make(versions[i]);
		uint8_t transaction = versions[i] >= 1300 ? 5 : 4;

		// A row: 0 holds, 1 waits for its transaction.
		image_make_lock(image, 0, transaction, 745, 0);
		image_hold(image, 0, 0, 0, 1 << EXCLUSIVE);
		image_wait(image, 1, 0, 1, SHARE);
		// A table: 2 and 3 read it, 4 wants to change it, 5 reads behind it.
		image_make_lock(image, 1, 0, 5, 16384);
		image_hold(image, 2, 1, 2, 1 << ACCESS_SHARE);
		image_hold(image, 3, 1, 3, 1 << ACCESS_SHARE | 1 << ROW_EXCLUSIVE);
		image_wait(image, 4, 1, 4, ACCESS_EXCLUSIVE);
		image_wait(image, 5, 1, 5, ACCESS_SHARE);
		struct result result = read_image(image, NULL);
		CHECK_INT(result.waits.count, 3);
		CHECK_INT(owner_of(&result, 1), 0);
		const struct stall_postgres_wait *row = wait_of(&result, 1),
						 *table = wait_of(&result, 4);
		CHECK(owner_of(&result, 4) == 2 || owner_of(&result, 4) == 3);
		CHECK_INT(owner_of(&result, 5), 4);
		if (row && table) {
			CHECK_INT(row->object, STALL_POSTGRES_ROW);
			CHECK_STRING(row->name, "transaction 745");
			CHECK_INT(row->owner_raw, IMAGE_FIRST_PID);
			CHECK_INT(row->mode, SHARE);
			CHECK_INT(row->lock, image_lock(image, 0));
			CHECK_INT(table->object, STALL_POSTGRES_TABLE);
			CHECK_STRING(table->name, "relation 16384 of database 5");
		}
		result_deinit(&result);
		image_destroy(image);
	}
}

// Whom a waiter does not wait for.
static void test_no_owner(void)
{
	struct postgres_image *image = make(1700);

	// 0 shares what 1 wants to share; 2 is of the same parallel query as 1.
	image_make_lock(image, 0, 0, 5, 16384);
	image_hold(image, 0, 0, 0, 1 << SHARE);
	image_wait(image, 1, 0, 1, SHARE);
	image_hold(image, 2, 0, 2, 1 << EXCLUSIVE);
	image_u64(image_node(image, 2) + 16, (uint64_t)image_proc(image, 1));
	// A prepared transaction, whose PGPROC is behind the others.
	image_make_lock(image, 1, 0, 5, 16385);
	image_hold(image, 3, 1, IMAGE_SLOTS, 1 << EXCLUSIVE);
	image_wait(image, 4, 1, 3, SHARE);
	// A backend that is not captured.
	image_make_lock(image, 2, 0, 5, 16386);
	image_hold(image, 5, 2, IMAGE_BACKENDS, 1 << EXCLUSIVE);
	image_wait(image, 6, 2, 4, SHARE);
	struct result result = read_image(image, NULL);
	CHECK_INT(result.waits.count, 3);
	CHECK_INT(owner_of(&result, 1), STALL_POSTGRES_NO_OWNER);
	CHECK_INT(owner_of(&result, 3), STALL_POSTGRES_NO_OWNER);
	CHECK(wait_of(&result, 3) && wait_of(&result, 3)->owner_raw == 0);
	CHECK_INT(owner_of(&result, 4), STALL_POSTGRES_NO_OWNER);
	CHECK(wait_of(&result, 4) &&
	      wait_of(&result, 4)->owner_raw == IMAGE_FIRST_PID + IMAGE_BACKENDS);
	result_deinit(&result);
	image_destroy(image);
}

// Lists that do not end, that leave shared memory, or that belong to another lock.
static void test_bad_lists(void)
{
	enum damage { ROUND, OUTSIDE, NOWHERE, OTHER, TAG, METHOD, COUNTS, DAMAGES };

	for (enum damage damage = ROUND; damage < DAMAGES; damage++) {
		struct postgres_image *image = make(1500);

		image_make_lock(image, 0, 5, 745, 0);
		image_wait(image, 0, 0, 1, SHARE);
		image_hold(image, 1, 0, 0, 1 << EXCLUSIVE);
		uint8_t *next = image_node(image, 0) + 32 + 8;
		if (damage == ROUND)
			image_u64(next, (uint64_t)(image_node(image, 0) + 32));
		if (damage == OUTSIDE)
			image_u64(next, (uint64_t)image->variables);
		if (damage == NOWHERE)
			image_u64(next, 8);
		if (damage == OTHER)
			image_u64(image_node(image, 1), (uint64_t)image_lock(image, 1));
		if (damage == TAG)
			image_lock(image, 0)[14] = 200;
		if (damage == METHOD)
			image_lock(image, 0)[15] = 3;
		if (damage == COUNTS)
			image_u32(image_lock(image, 0) + 148, 3);
		struct result result = read_image(image, NULL);
		if (damage < TAG)
			CHECK_INT(owner_of(&result, 1), STALL_POSTGRES_NO_OWNER);
		else
			CHECK_INT(result.waits.count, 0);
		result_deinit(&result);
		image_destroy(image);
	}
}

int main(void)
{
	test_every_version();
	test_hosts();
	test_layout();
	test_keys();
	test_given_layout();
	test_no_entries();
	test_one_rejected();
	test_cut_statement();
	test_other_states();
	test_search();
	test_locks();
	test_no_owner();
	test_bad_lists();
	return check_done();
}

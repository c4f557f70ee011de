// SPDX-License-Identifier: Apache-2.0
#include "introspect/postgres_entries.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/cleanup.h"
#include "introspect/session_text.h"
#include "proc/read_child.h"

#define ATTEMPTS 4
#define SAMPLES 8    // backends whose own memory must agree
#define NAME_SIZE 64 // NAMEDATALEN
#define NAME_TRIES 4 // backends that are asked for one name
#define NS_PER_US UINT64_C(1000)
#define DAY_NS (UINT64_C(86400) * 1000000000)
// Timestamps are microseconds since 2000-01-01.
#define EPOCH_NS (UINT64_C(946684800) * 1000000000)
#define OLDEST_US (UINT64_C(5) * 365 * 86400 * 1000000) // nothing runs since before 2005

// A backend that has an entry. The entry is read before and after its texts, in one call, so that they
// are of one moment where st_changecount is the same.
struct candidate {
	uint32_t backend;
	uint64_t address;
	uint64_t activity, name; // where its texts were
	uint8_t *first, *second;
	char *activity_text, *name_text;
	size_t activity_done, name_done;
	bool settled, lost;
};

// Names of users and databases by their numbers.
struct named {
	uint32_t number;
	char name[STALL_SESSION_NAME];
};

struct entries {
	const struct stall_postgres_server *server;
	struct candidate *candidates;
	size_t count;
	size_t text_size; // bytes that are read of a statement
	struct named *users, *databases;
	size_t user_count, database_count;
};

static void entries_deinit(struct entries *entries)
{
	free(entries->candidates);
	free(entries->users);
	free(entries->databases);
}

static const struct stall_postgres_layout *layout_of(const struct entries *entries)
{
	return &entries->server->layout;
}

// Entries of the array with the pid of a process of the snapshot.
static void list_candidates(struct entries *entries, const uint8_t *array, size_t size)
{
	const struct stall_postgres_layout *layout = layout_of(entries);
	const size_t entry_size = (size_t)layout->entry_size;
	_cleanup_free_ size_t *entry_of =
		calloc(entries->server->backend_count + 1, sizeof(*entry_of));

	for (size_t at = 0; entry_of && at + entry_size <= size; at += entry_size) {
		const uint8_t *bytes = array + at;
		pid_t pid = (pid_t)stall_postgres_u32(bytes, layout->pid);
		size_t backend = pid > 0 ? stall_postgres_find(entries->server, pid) : SIZE_MAX;

		if (backend == SIZE_MAX)
			continue;
		// Two with the same pid: which of them is left over is not known.
		if (entry_of[backend]) {
			entries->candidates[entry_of[backend] - 1].lost = true;
			continue;
		}
		entries->candidates[entries->count] = (struct candidate){
			.backend = (uint32_t)backend,
			.address = entries->server->entries + at,
			.activity = stall_postgres_u64(bytes, layout->activity),
			.name = stall_postgres_u64(bytes, layout->name),
		};
		entry_of[backend] = ++entries->count;
	}
}

// What is read goes into the snapshot's arena, which the reading child shares. Without room in it
// there are no candidates.
static struct stall_error *find_candidates(struct entries *entries)
{
	const struct stall_postgres_server *server = entries->server;
	size_t size = (size_t)server->entry_count * (size_t)server->layout.entry_size;
	uint8_t *array = stall_arena_alloc(server->snapshot->arena, size);

	entries->candidates = calloc(server->backend_count + 1, sizeof(*entries->candidates));
	if (!entries->candidates)
		return &stall_enomem;
	if (!array)
		return NULL;
	struct stall_read read = {.address = server->entries, .buf = array, .size = size};
	stall_postgres_read_shared(server, &read, 1);
	list_candidates(entries, array, read.done);
	return NULL;
}

static void allocate(struct entries *entries)
{
	const size_t entry_size = (size_t)layout_of(entries)->entry_size;
	const size_t size = 2 * entry_size + entries->text_size + NAME_SIZE;
	uint8_t *bytes = stall_arena_alloc(entries->server->snapshot->arena, entries->count * size);

	if (!bytes)
		entries->count = 0;
	for (size_t i = 0; i < entries->count; i++) {
		struct candidate *candidate = &entries->candidates[i];

		candidate->first = bytes + i * size;
		candidate->second = candidate->first + entry_size;
		candidate->name_text = (char *)candidate->second + entry_size;
		candidate->activity_text = candidate->name_text + NAME_SIZE;
	}
}

#define READS 4 // of a candidate

static void add_reads(const struct entries *entries, struct candidate *candidate,
		      struct stall_read reads[READS])
{
	const struct stall_postgres_server *server = entries->server;
	const size_t entry_size = (size_t)server->layout.entry_size;
	bool has_text = entries->text_size &&
			stall_postgres_is_shared(server, candidate->activity & ~UINT64_C(7),
						 entries->text_size);
	bool has_name = stall_postgres_is_shared(server, candidate->name & ~UINT64_C(7), NAME_SIZE);

	reads[0] = (struct stall_read){candidate->address, candidate->first, entry_size, 0};
	reads[1] = (struct stall_read){candidate->activity, candidate->activity_text,
				       has_text ? entries->text_size : 0, 0};
	reads[2] = (struct stall_read){candidate->name, candidate->name_text,
				       has_name ? NAME_SIZE : 0, 0};
	reads[3] = (struct stall_read){candidate->address, candidate->second, entry_size, 0};
}

// Whether nobody wrote to it meanwhile: the protocol of pgstat_begin_read_activity().
static bool is_settled(const struct entries *entries, const struct candidate *candidate)
{
	const struct stall_postgres_layout *layout = layout_of(entries);
	uint32_t count = stall_postgres_u32(candidate->first, layout->change_count);
	pid_t pid = (pid_t)stall_postgres_u32(candidate->first, layout->pid);

	return !(count & 1) &&
	       count == stall_postgres_u32(candidate->second, layout->change_count) &&
	       pid == entries->server->backends[candidate->backend].pid &&
	       pid == (pid_t)stall_postgres_u32(candidate->second, layout->pid) &&
	       candidate->activity == stall_postgres_u64(candidate->first, layout->activity) &&
	       candidate->name == stall_postgres_u64(candidate->first, layout->name);
}

static struct stall_error *read_candidates(struct entries *entries)
{
	_cleanup_free_ struct stall_read *reads =
		calloc(entries->count + 1, READS * sizeof(*reads));
	_cleanup_free_ struct candidate **left = calloc(entries->count + 1, sizeof(*left));

	if (!reads || !left)
		return &stall_enomem;
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		size_t count = 0;

		for (size_t i = 0; i < entries->count; i++) {
			struct candidate *candidate = &entries->candidates[i];

			if (candidate->settled || candidate->lost)
				continue;
			add_reads(entries, candidate, &reads[count * READS]);
			left[count++] = candidate;
		}
		if (!count)
			return NULL;
		stall_postgres_read_shared(entries->server, reads, count * READS);
		for (size_t i = 0; i < count; i++) {
			const struct stall_read *own = &reads[i * READS];

			left[i]->activity_done = own[1].done;
			left[i]->name_done = own[2].done;
			left[i]->settled = own[0].done == own[0].size &&
					   own[3].done == own[3].size &&
					   is_settled(entries, left[i]);
		}
	}
	return NULL;
}

// A time since the epoch of Unix; 0: none.
static uint64_t time_of(const uint8_t *bytes, int32_t offset)
{
	uint64_t us = stall_postgres_u64(bytes, offset);

	return us && us < UINT64_MAX / NS_PER_US - EPOCH_NS / NS_PER_US ? us * NS_PER_US + EPOCH_NS
									: 0;
}

static bool is_time(const struct entries *entries, const uint8_t *bytes, int32_t offset)
{
	uint64_t us = stall_postgres_u64(bytes, offset);

	return !us || (us > OLDEST_US &&
		       time_of(bytes, offset) < entries->server->snapshot->wall_ns + DAY_NS &&
		       time_of(bytes, offset));
}

static bool is_family(uint16_t family)
{
	return family == AF_UNSPEC || family == AF_UNIX || family == AF_INET || family == AF_INET6;
}

static uint16_t family_of(const struct entries *entries, const uint8_t *bytes)
{
	uint16_t family;

	memcpy(&family, bytes + layout_of(entries)->client, sizeof(family));
	return family;
}

static const char *type_of(const struct entries *entries, const uint8_t *bytes)
{
	const struct stall_postgres_layout *layout = layout_of(entries);

	return layout->type == STALL_PG_NONE
		       ? NULL
		       : stall_postgres_type(layout, stall_postgres_u32(bytes, layout->type));
}

// Whether all that is known of an entry holds.
static bool is_entry(const struct entries *entries, const struct candidate *candidate)
{
	const struct stall_postgres_layout *layout = layout_of(entries);
	const uint8_t *bytes = candidate->first;
	enum stall_postgres_state state;

	return stall_postgres_state(layout, stall_postgres_u32(bytes, layout->state), &state) &&
	       (layout->type == STALL_PG_NONE || type_of(entries, bytes)) &&
	       is_time(entries, bytes, layout->proc_start) && time_of(bytes, layout->proc_start) &&
	       is_time(entries, bytes, layout->xact_start) &&
	       is_time(entries, bytes, layout->activity_start) &&
	       is_time(entries, bytes, layout->state_start) &&
	       is_family(family_of(entries, bytes)) &&
	       candidate->activity_done == entries->text_size &&
	       (!entries->text_size || entries->text_size < entries->server->query_size ||
		memchr(candidate->activity_text, 0, entries->text_size)) &&
	       memchr(candidate->name_text, 0, candidate->name_done);
}

static enum stall_postgres_state state_of(const struct entries *entries,
					  const struct candidate *candidate)
{
	const struct stall_postgres_layout *layout = layout_of(entries);
	enum stall_postgres_state state = STALL_PG_UNDEFINED;

	stall_postgres_state(layout, stall_postgres_u32(candidate->first, layout->state), &state);
	return state;
}

static bool is_idle(enum stall_postgres_state state)
{
	return state == STALL_PG_IDLE || state == STALL_PG_IDLE_IN_TRANSACTION ||
	       state == STALL_PG_ABORTED;
}

// Asks a backend itself: its entry is that one, and it has no statement while its state is idle. This
// fails where a version has other numbers for the states.
static bool agrees(const struct entries *entries, struct candidate *candidate)
{
	const struct stall_postgres_server *server = entries->server;
	const struct stall_postgres_layout *layout = &server->layout;
	uint64_t entry = candidate->address, query = 0;
	uint32_t count = 0;
	struct stall_read reads[] = {
		{.address = server->symbols[STALL_PG_QUERY], .buf = &query, .size = 8},
		{.address = candidate->address + (uint64_t)layout->change_count,
		 .buf = &count,
		 .size = 4},
		{.address = server->symbols[STALL_PG_ENTRY], .buf = &entry, .size = 8},
	};

	stall_postgres_read_own(server, candidate->backend, reads,
				server->symbols[STALL_PG_ENTRY] ? 3 : 2);
	// It may have ended.
	if (reads[0].done != 8 || reads[1].done != 4)
		return true;
	if (count != stall_postgres_u32(candidate->first, layout->change_count))
		return true;
	return entry == candidate->address && (!query || !server->symbols[STALL_PG_QUERY] ||
					       !is_idle(state_of(entries, candidate)));
}

static bool is_client(const struct entries *entries, const struct candidate *candidate)
{
	return layout_of(entries)->type == STALL_PG_NONE ||
	       stall_postgres_is_client(type_of(entries, candidate->first));
}

static bool are_entries(const struct entries *entries)
{
	size_t clients = 0, seen = 0;

	for (size_t i = 0; i < entries->count; i++) {
		const struct candidate *candidate = &entries->candidates[i];

		if (candidate->settled && !is_entry(entries, candidate))
			return false;
		clients += candidate->settled && is_client(entries, candidate);
	}
	size_t step = clients / SAMPLES + 1;
	for (size_t i = 0; i < entries->count; i++) {
		struct candidate *candidate = &entries->candidates[i];

		if (candidate->settled && is_client(entries, candidate) && !(seen++ % step) &&
		    !agrees(entries, candidate))
			return false;
	}
	return true;
}

static struct named *find_name(struct named *names, size_t count, uint32_t number)
{
	for (size_t i = 0; i < count; i++)
		if (names[i].number == number)
			return &names[i];
	return NULL;
}

// What the backend's own Port says of its user and database, which its entry has as numbers.
static bool read_port(const struct entries *entries, const struct candidate *candidate,
		      char *ret_user, char *ret_database)
{
	const struct stall_postgres_server *server = entries->server;
	uint64_t port = 0, user = 0, database = 0;
	pid_t pid = 0;
	char texts[2][STALL_SESSION_NAME];
	struct stall_read own[] = {
		{.address = server->symbols[STALL_PG_PORT], .buf = &port, .size = 8},
		{.address = server->symbols[STALL_PG_PID], .buf = &pid, .size = 4},
	};

	stall_postgres_read_own(server, candidate->backend, own, 2);
	if (!port || pid != server->backends[candidate->backend].pid)
		return false;
	struct stall_read members[] = {
		{.address = port + (uint64_t)server->layout.port_user, .buf = &user, .size = 8},
		{.address = port + (uint64_t)server->layout.port_database,
		 .buf = &database,
		 .size = 8},
	};
	stall_postgres_read_own(server, candidate->backend, members, 2);
	struct stall_read names[] = {
		{.address = user, .buf = texts[0], .size = sizeof(texts[0])},
		{.address = database, .buf = texts[1], .size = sizeof(texts[1])},
	};
	if (members[0].done != 8 || members[1].done != 8 || !user || !database)
		return false;
	stall_postgres_read_own(server, candidate->backend, names, 2);
	return stall_session_name(texts[0], names[0].done, SIZE_MAX, ret_user,
				  STALL_SESSION_NAME) &&
	       stall_session_name(texts[1], names[1].done, SIZE_MAX, ret_database,
				  STALL_SESSION_NAME);
}

static void put_name(struct named *names, size_t *count, uint32_t number, const char *name)
{
	struct named *known = find_name(names, *count, number);

	if (!number || !name[0])
		return;
	if (!known) {
		known = &names[(*count)++];
		known->number = number;
	}
	memcpy(known->name, name, STALL_SESSION_NAME);
}

// One backend of each user and each database is asked, or a few where one does not answer.
static struct stall_error *read_names(struct entries *entries)
{
	const struct stall_postgres_layout *layout = layout_of(entries);
	_cleanup_free_ struct named *failed = calloc(entries->count + 1, sizeof(*failed));
	size_t failures = 0;

	entries->users = calloc(entries->count + 1, sizeof(*entries->users));
	entries->databases = calloc(entries->count + 1, sizeof(*entries->databases));
	if (!entries->users || !entries->databases || !failed)
		return &stall_enomem;
	for (size_t i = 0; entries->server->symbols[STALL_PG_PORT] && i < entries->count; i++) {
		const struct candidate *candidate = &entries->candidates[i];
		uint32_t user = stall_postgres_u32(candidate->first, layout->user);
		uint32_t database = stall_postgres_u32(candidate->first, layout->database);
		char user_name[STALL_SESSION_NAME], database_name[STALL_SESSION_NAME];

		if (!candidate->settled || !is_client(entries, candidate) || !user || !database ||
		    (find_name(entries->users, entries->user_count, user) &&
		     find_name(entries->databases, entries->database_count, database)))
			continue;
		if (failures >= NAME_TRIES * SAMPLES)
			break;
		if (!read_port(entries, candidate, user_name, database_name)) {
			failures++;
			continue;
		}
		put_name(entries->users, &entries->user_count, user, user_name);
		put_name(entries->databases, &entries->database_count, database, database_name);
	}
	return NULL;
}

static void take_host(const struct entries *entries, const uint8_t *bytes, char *ret)
{
	const uint8_t *address = bytes + layout_of(entries)->client;
	uint16_t family = family_of(entries, bytes);
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;

	if (family == AF_UNIX)
		strcpy(ret, "[local]");
	memcpy(&v4, address, sizeof(v4));
	memcpy(&v6, address, sizeof(v6));
	if (family == AF_INET)
		inet_ntop(AF_INET, &v4.sin_addr, ret, STALL_SESSION_NAME);
	if (family == AF_INET6)
		inet_ntop(AF_INET6, &v6.sin6_addr, ret, STALL_SESSION_NAME);
}

static void take_statement(const struct entries *entries, const struct candidate *candidate,
			   enum stall_postgres_state state, struct stall_session *ret)
{
	size_t size = strnlen(candidate->activity_text, candidate->activity_done);

	if (state == STALL_PG_DISABLED || state == STALL_PG_UNDEFINED || !size ||
	    !stall_session_is_text(candidate->activity_text, size))
		return;
	ret->statement = candidate->activity_text;
	ret->statement_size = size;
	ret->cut = size == entries->text_size || size + 1 >= entries->server->query_size;
	ret->last = is_idle(state);
}

static void take_wait(const struct stall_postgres_server *server, const uint8_t *proc,
		      struct stall_session *ret)
{
	uint32_t event = proc ? stall_postgres_u32(proc, server->layout.wait_event) : 0;

	ret->wait_class = stall_postgres_wait_class(event);
	ret->wait_event = event & 0xffffff;
}

static void take_entry(const struct entries *entries, const struct candidate *candidate,
		       const uint8_t *proc, struct stall_session *ret)
{
	const struct stall_postgres_layout *layout = layout_of(entries);
	const struct stall_postgres_backend *backend =
		&entries->server->backends[candidate->backend];
	const uint8_t *bytes = candidate->first;
	enum stall_postgres_state state = state_of(entries, candidate);
	const struct named *user = find_name(entries->users, entries->user_count,
					     stall_postgres_u32(bytes, layout->user));
	const struct named *database = find_name(entries->databases, entries->database_count,
						 stall_postgres_u32(bytes, layout->database));
	uint64_t since =
		time_of(bytes, is_idle(state) ? layout->state_start : layout->activity_start);
	uint64_t now = entries->server->snapshot->wall_ns;

	*ret = (struct stall_session){
		.thread = backend->thread,
		.connection = (uint64_t)backend->pid,
		.command = -1,
		.command_name = type_of(entries, bytes),
		.transaction = -1,
		.age_ns = UINT64_MAX,
	};
	if (user)
		memcpy(ret->user, user->name, sizeof(ret->user));
	if (database)
		memcpy(ret->database, database->name, sizeof(ret->database));
	strcpy(ret->state, stall_postgres_state_name(state));
	take_host(entries, bytes, ret->host);
	if (!stall_session_name(candidate->name_text, candidate->name_done, SIZE_MAX,
				ret->application, sizeof(ret->application)))
		ret->application[0] = '\0';
	// Processes without a database have none.
	if (state != STALL_PG_DISABLED && stall_postgres_u32(bytes, layout->database))
		ret->transaction = time_of(bytes, layout->xact_start) != 0;
	// A statement can have begun since the capture did.
	if (since && state != STALL_PG_DISABLED)
		ret->age_ns = now > since ? now - since : 0;
	take_statement(entries, candidate, state, ret);
	take_wait(entries->server, proc, ret);
}

// By backend: its PGPROC. All NULL where one of them is of another database than its entry says: then
// PGPROC is not what it should be.
static struct stall_error *find_procs(const struct entries *entries, const uint8_t ***ret)
{
	const struct stall_postgres_server *server = entries->server;
	const struct stall_postgres_layout *layout = &server->layout;
	_cleanup_free_ const uint8_t **procs = calloc(server->backend_count + 1, sizeof(*procs));

	if (!procs)
		return &stall_enomem;
	for (uint32_t i = 0; server->proc_bytes && i < server->proc_count; i++) {
		const uint8_t *proc = stall_postgres_proc(server, i);
		pid_t pid = (pid_t)stall_postgres_u32(proc, layout->proc_pid);
		size_t backend = pid > 0 ? stall_postgres_find(server, pid) : SIZE_MAX;

		if (backend != SIZE_MAX)
			procs[backend] = proc;
	}
	for (size_t i = 0; i < entries->count; i++) {
		const struct candidate *candidate = &entries->candidates[i];
		const uint8_t *proc = procs[candidate->backend];
		uint32_t event;

		if (!proc || !candidate->settled)
			continue;
		uint32_t database = stall_postgres_u32(candidate->first, layout->database);
		uint32_t proc_database = stall_postgres_u32(proc, layout->proc_database);
		event = stall_postgres_u32(proc, layout->wait_event);
		if ((database && proc_database && database != proc_database) ||
		    (event && !stall_postgres_wait_class(event)))
			memset(procs, 0, server->backend_count * sizeof(*procs));
	}
	*ret = no_cleanup_ptr(procs);
	return NULL;
}

static struct stall_error *append(const struct entries *entries, struct stall_sessions *sessions)
{
	_cleanup_free_ const uint8_t **procs = NULL;
	struct stall_error *err = find_procs(entries, &procs);

	if (err)
		return err;
	if (!stall_array_resize(&sessions->sessions, sessions->count + entries->count))
		return &stall_enomem;
	for (size_t i = 0; i < entries->count; i++) {
		const struct candidate *candidate = &entries->candidates[i];
		uint32_t thread = entries->server->backends[candidate->backend].thread;

		if (!candidate->settled)
			sessions->rejected++;
		else if (!entries->server->snapshot->threads[thread].unchanged)
			take_entry(entries, candidate, procs[candidate->backend],
				   &sessions->sessions[sessions->count++]);
	}
	return NULL;
}

struct stall_error *stall_postgres_read_entries(const struct stall_postgres_server *server,
						struct stall_sessions *sessions)
{
	_cleanup_(entries_deinit) struct entries entries = {.server = server};

	if (!server->entries)
		return NULL;
	entries.text_size = server->query_size < STALL_SESSION_STATEMENT ? server->query_size
									 : STALL_SESSION_STATEMENT;
	struct stall_error *err = find_candidates(&entries);
	if (err)
		return err;
	allocate(&entries);
	err = read_candidates(&entries);
	if (err)
		return err;
	if (!are_entries(&entries)) {
		sessions->rejected += entries.count;
		return NULL;
	}
	err = read_names(&entries);
	return err ? err : append(&entries, sessions);
}

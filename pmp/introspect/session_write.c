// SPDX-License-Identifier: Apache-2.0
#include "introspect/sessions.h"

// Of a line: statements beyond it are left out. No reader takes a line of any length.
#define MAX_LINE (32 << 20)

static void write_name(struct stall_json *json, const char *key, const char *name)
{
	stall_json_member_string(json, key, name[0] ? name : NULL);
}

static void write_session(struct stall_json *json, const struct stall_session *session,
			  const struct stall_thread *thread)
{
	stall_json_open(json, '{');
	stall_json_member_uint(json, "process", thread->process);
	stall_json_member_int(json, "tid", thread->tid);
	stall_json_member_uint(json, "connection", session->connection);
	write_name(json, "user", session->user);
	write_name(json, "host", session->host);
	write_name(json, "database", session->database);
	if (session->command >= 0)
		stall_json_member_int(json, "command", session->command);
	if (session->command_name)
		stall_json_member_string(json, "command_name", session->command_name);
	write_name(json, "state", session->state);
	if (session->transaction >= 0)
		stall_json_member_bool(json, "transaction", session->transaction);
	if (session->transaction_id)
		stall_json_member_uint(json, "transaction_id", session->transaction_id);
	if (session->age_ns != UINT64_MAX)
		stall_json_member_ms(json, "age_ms", session->age_ns);
	if (session->statement && json->size < MAX_LINE) {
		stall_json_key(json, "statement");
		stall_json_string_n(json, session->statement, session->statement_size);
		stall_json_member_bool(json, "cut", session->cut);
		stall_json_member_bool(json, "last", session->last);
	}
	if (session->application[0])
		stall_json_member_string(json, "application", session->application);
	if (session->wait_class) {
		stall_json_member_string(json, "wait_class", session->wait_class);
		stall_json_member_uint(json, "wait_event", session->wait_event);
	}
	stall_json_close(json, '}');
}

void stall_sessions_write(const struct stall_sessions *sessions,
			  const struct stall_snapshot *snapshot, struct stall_json *json)
{
	stall_json_open(json, '{');
	stall_json_member_string(json, "type", "sessions");
	stall_json_member_uint(json, "time_ns", snapshot->wall_ns);
	stall_json_member_uint(json, "moment", snapshot->moment);
	stall_json_member_uint(json, "rejected", sessions->rejected);
	stall_json_member_uint(json, "read_ns", sessions->read_ns);
	stall_json_key(json, "sessions");
	stall_json_open(json, '[');
	for (size_t i = 0; i < sessions->count; i++)
		write_session(json, &sessions->sessions[i],
			      &snapshot->threads[sessions->sessions[i].thread]);
	stall_json_close(json, ']');
	stall_json_close(json, '}');
	stall_json_newline(json);
}

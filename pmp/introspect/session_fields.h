// SPDX-License-Identifier: Apache-2.0
// The fields of one connection, from what was read of its object.
#ifndef STALL_SESSION_FIELDS_H
#define STALL_SESSION_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "introspect/session.h"
#include "introspect/session_plan.h"
#include "snapshot/snapshot.h"

enum { NAME_USER, NAME_HOST, NAME_DATABASE, NAME_STATE, STALL_SESSION_NAMES };

#define STALL_SESSION_PLACES 3 // of a name

// A text that names point to; several may point to the same.
struct stall_session_slot {
	uint64_t address;
	uint32_t process;
	size_t done;
	char text[STALL_SESSION_NAME];
};

// One thread while it is read.
struct stall_session_reading {
	uint32_t thread;
	uint64_t object;
	size_t object_done;
	uint8_t *first, *again; // the ranges
	size_t range_done[WORDS];
	uint64_t spare[2]; // `thd.self.2` and `.3`, where they are not in the ranges
	size_t spare_done[2];
	uint8_t second[16]; // of the last statement: pointer and length
	uint64_t begun;	    // when it began, in the second object
	size_t second_done, begun_done;
	uint64_t last_pointer; // where the last statement is
	uint32_t last_size;    // UINT32_MAX: it ends with a zero
	uint64_t trx, trx_id;
	size_t trx_done;
	const struct stall_session_slot *names[STALL_SESSION_NAMES][STALL_SESSION_PLACES];
	char *text; // of `text_size`; without a start twice as long, with another read behind it
	size_t text_size, text_done, again_done;
	bool text_differs; // from one read to another
};

enum stall_session_word stall_session_name_word(int name, int place);
// The connection's number; 0: it is a background thread.
uint64_t stall_session_connection(const struct stall_session_plan *plan, const uint8_t *bytes);
bool stall_session_numbers_agree(const struct stall_session_plan *plan, const uint8_t *bytes);
// Every statement has its own start. Without it the text of another one, at the same address, can
// have been read between two reads of the same pointer.
bool stall_session_knows_start(const struct stall_session_plan *plan);
bool stall_session_is_idle(const struct stall_session_plan *plan, const uint8_t *bytes);
bool stall_session_in_transaction(const struct stall_session_plan *plan, const uint8_t *bytes);
// MariaDB keeps the object of a connection that has ended for the thread's next one: it has no user
// any more. One that logs in has none yet, and is not idle.
bool stall_session_has_ended(const struct stall_session_plan *plan, const uint8_t *bytes);
// Where the memory of the last statement of an idle connection is pointed to; 0: it has none, or the
// pointer is of another connection that had this object before.
uint64_t stall_session_last(const struct stall_session_plan *plan, const uint8_t *bytes);
// Whether a second object is of the connection's last statement.
bool stall_session_has_begun(const struct stall_session_plan *plan,
			     const struct stall_session_reading *reading);
// Where the statement of a thread is, and how much of it is read; 0: none.
uint64_t stall_session_statement(const struct stall_session_plan *plan,
				 const struct stall_session_reading *reading, size_t *ret_size);
// Notes whether a text that was read again differs.
void stall_session_compare_texts(struct stall_session_reading *reading);
// All fields; the statement is that of `reading`.
void stall_session_take(const struct stall_session_plan *plan,
			const struct stall_snapshot *snapshot,
			const struct stall_session_reading *reading, struct stall_session *ret);

#endif

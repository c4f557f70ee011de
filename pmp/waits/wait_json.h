// SPDX-License-Identifier: Apache-2.0
// Writes a line of stallscope.waits/1 (docs/waits-schema.md).
#ifndef STALL_WAIT_JSON_H
#define STALL_WAIT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "waits/wait_history.h"
#include "waits/wait_process.h"
#include "waits/wait_source.h"
#include "waits/wait_stacks.h"
#include "waits/wait_table.h"

struct stall_wait_line {
	bool final;
	uint64_t wall_ns, length_ns;
	const struct stall_wait_process *processes;
	size_t process_count;
	const char *source;			    // the wait source
	const char *in_flight_by;		    // what finds waits in flight
	const struct stall_wait_sampling *sampling; // NULL: each wait is seen
	int64_t call_added_ns; // to each system call of the host; -1: nothing, or not measured
	const struct stall_wait_rest *rest; // NULL: it never rests
	struct stall_wait_history *history; // NULL: not requested; taken from it
	uint32_t kinds;			    // 1 << enum stall_watch_kind: the requested ones
	const uint64_t *threshold_ns;	    // by enum stall_wait_kind
	const struct stall_wait_table *table;
	const struct stall_wait_stacks *stacks;
	const struct stall_wait_top *top;
	const struct stall_json *events; // "[...]", NULL: not requested
	const struct stall_wait_hits *server;
	size_t server_count;
	const struct stall_wait_number *lost;
	size_t lost_count;
	const struct stall_wait_program *programs;
	size_t program_count; // 0: they were written before
};

// An object, without a newline.
struct stall_error *stall_wait_line_write(const struct stall_wait_line *line,
					  struct stall_json *json);

// A list of frames as the next value.
void stall_wait_frames_write(const char *const *frames, size_t count, struct stall_json *json);

#endif

// SPDX-License-Identifier: Apache-2.0
// The wait programs of a serving probe: on and off, their lines, and the captures they take.
#ifndef STALL_WATCHING_H
#define STALL_WATCHING_H

#include "serve/server.h"

struct stall_error *stall_watching_on(struct stall_server *server);
void stall_watching_off(struct stall_server *server);

// Thresholds of kinds (1 << enum stall_watch_kind), on or off.
struct stall_error *stall_watching_set_threshold(struct stall_server *server, uint32_t kinds,
						 uint64_t ns);
struct stall_error *stall_watching_set_capture_threshold(struct stall_server *server,
							 uint32_t kinds, uint64_t ns);

// A line of stallscope.waits/1 now.
struct stall_error *stall_watching_write(struct stall_server *server, bool final);

// Handles records, waits that have lasted long enough, and a line that is due. Call it when the
// descriptor of the watch is readable, and at stall_watching_next_ms() anyway.
struct stall_error *stall_watching_run(struct stall_server *server);
int stall_watching_next_ms(const struct stall_server *server); // -1: never

#endif

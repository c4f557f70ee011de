/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment says, and what is said to people. */
#ifndef STALL_RECORDER_SETTINGS_H
#define STALL_RECORDER_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"

/*
 * What the server's environment says, read once:
 *
 *   STALLSCOPE_RUNTIME_DIR=DIR		where the ring is made, and nowhere else
 *   STALLSCOPE_THRESHOLD=KIND=MS[,...]	kinds and groups as in `stallscope waits`: lock, fsync, ...;
 *					or MS for all. Whole milliseconds; 100
 *   STALLSCOPE_THREADS=N		slots
 *   STALLSCOPE_KEEP_RING=1		the ring stays when the server exits
 *   STALLSCOPE_OFF=1			the ring is made all the same, with `enabled` 0, so that
 *					whoever may write it can switch it on
 *
 * What is not understood is said in one line on standard error, and passed over.
 */

struct recorder_settings {
	const char *directory, *xdg; /* NULL: not set, or not to be believed */
	uint64_t threshold_ns[STALL_WAIT_KINDS];
	uint32_t slots;
	bool keep, off;
	const char *bad; /* a variable whose value was passed over */
};
const struct recorder_settings *recorder_settings(void);
/* A line on standard error, if that is still what it was: "stallscope: " and the parts up to NULL. */
void recorder_print(const char *const *parts);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, and messages to users. */
#ifndef STALL_RECORDER_SETTINGS_H
#define STALL_RECORDER_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"

/*
 * The settings in the server's environment, read once:
 *
 *   STALLSCOPE_RUNTIME_DIR=DIR		where the ring is made, and nowhere else
 *   STALLSCOPE_THRESHOLD=KIND=MS[,...]	kinds and groups as in `stallscope waits`: lock, fsync, ...;
 *					or MS for all. Whole milliseconds; 100
 *   STALLSCOPE_THREADS=N		slots
 *   STALLSCOPE_KEEP_RING=1		the ring stays when the server exits
 *   STALLSCOPE_OFF=1			the ring is made all the same, with `enabled` 0, so that
 *					who may write it can switch it on
 *
 * A value that is not understood is reported in one line on standard error, and ignored.
 */

struct recorder_settings {
	const char *directory, *xdg; /* NULL: not set, or not trusted */
	uint64_t threshold_ns[STALL_WAIT_KINDS];
	uint32_t slots;
	bool keep, off;
	const char *bad; /* a variable whose value was ignored */
};
const struct recorder_settings *recorder_settings(void);
/* Prints a line on standard error, if that is still the same file: "stallscope: " and the parts up
 * to NULL. */
void recorder_print(const char *const *parts);

#endif

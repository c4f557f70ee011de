// SPDX-License-Identifier: Apache-2.0
// Giving up, for good, the capabilities that a command does not use.
#ifndef STALL_PRIVILEGES_H
#define STALL_PRIVILEGES_H

#include <stdbool.h>

#include "base/error.h"

// What a command does, beside reading files and unwinding in a child without privileges.
struct stall_privileges {
	bool reads_processes;
	bool opens_programs; // that a path such as /proc/PID/exe may name
	bool sets_uprobes;
	bool stops_threads;	   // in a child that raises its priority
	const char *output_folder; // where files are made; NULL: nowhere
};

// Before children are made, and after all that takes more (stall_raise_priority()). What is kept,
// and what for, is a table in docs/risks.md. Nothing can be executed with privileges afterwards.
struct stall_error *stall_privileges_reduce(const struct stall_privileges *privileges);

#endif

// SPDX-License-Identifier: Apache-2.0
// The command line of stallscope-poke.
#ifndef STALL_POKE_OPTIONS_H
#define STALL_POKE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "poke/poke_change.h"

#define STALL_POKE_MAX_WORDS 64
#define STALL_POKE_DEADLINE_MS 20000

enum stall_poke_action {
	STALL_POKE_LOOK,
	STALL_POKE_SET,
	STALL_POKE_UNDO,
	STALL_POKE_HELP,
	STALL_POKE_VERSION,
};

struct stall_poke_options {
	enum stall_poke_action action;
	pid_t pid;
	struct stall_poke_word words[STALL_POKE_MAX_WORDS];
	size_t word_count;
	struct stall_poke_file files[STALL_POKE_MAX_FILES];
	size_t file_count;
	bool has_identity;
	struct stall_poke_identity identity; // expected
	const char *record;
	uint64_t duration_ns; // 0: until it is undone by hand
	uint64_t deadline_ms;
	bool hash, open_files;
};

extern const char stall_poke_help[];

// The options point into argv.
struct stall_error *stall_poke_options_init(struct stall_poke_options *options, int argc,
					    char **argv);

#endif

// SPDX-License-Identifier: Apache-2.0
// The command "poke": what a change to a live process would find, the change, and its undoing.
#ifndef STALL_POKE_COMMAND_H
#define STALL_POKE_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "poke/poke.h"
#include "poke/poke_process.h"

#define STALL_POKE_MAX_WORDS 64

enum stall_poke_action {
	STALL_POKE_LOOK,
	STALL_POKE_SET,
	STALL_POKE_UNDO,
};

struct stall_poke_options {
	enum stall_poke_action action;
	struct stall_poke_word words[STALL_POKE_MAX_WORDS];
	size_t word_count;
	struct stall_poke_file files[STALL_POKE_MAX_FILES];
	size_t file_count;
	bool has_identity;
	struct stall_poke_identity identity; // expected
	const char *record;
	uint64_t duration_ns; // 0: until it is undone by hand
	bool hash, open_files;
};

struct stall_error *stall_poke_option_word(struct stall_poke_options *options, const char *text);
struct stall_error *stall_poke_option_file(struct stall_poke_options *options, const char *text);
struct stall_error *stall_poke_option_do(struct stall_poke_options *options, const char *text);
struct stall_error *stall_poke_options_check(const struct stall_poke_options *options,
					     size_t pid_count);

// Writes a JSON line.
struct stall_error *stall_poke_run(const struct stall_poke_options *options, pid_t pid, int out);

#endif

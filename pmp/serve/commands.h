// SPDX-License-Identifier: Apache-2.0
// The commands of a serving probe, one per line.
#ifndef STALL_COMMANDS_H
#define STALL_COMMANDS_H

#include <limits.h>
#include <stdbool.h>

#include "base/messages.h"
#include "serve/server.h"

// "snap " and a path.
#define STALL_MAX_COMMAND (PATH_MAX + 16)

struct stall_commands {
	char text[STALL_MAX_COMMAND];
	struct stall_command_lines lines; // in `text`
	bool quit;
	bool ended; // the input has ended
};
void stall_commands_init(struct stall_commands *commands);

// Reads the available input and runs the complete lines.
struct stall_error *stall_commands_run(struct stall_commands *commands, struct stall_server *server,
				       int in);

#endif

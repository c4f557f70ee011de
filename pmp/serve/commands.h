// SPDX-License-Identifier: Apache-2.0
// The commands of a serving probe, one a line.
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
	bool ended; // nothing more comes
};
void stall_commands_init(struct stall_commands *commands);

// Reads what is there and runs the lines that are whole.
struct stall_error *stall_commands_run(struct stall_commands *commands, struct stall_server *server,
				       int in);

#endif

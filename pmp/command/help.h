// SPDX-License-Identifier: Apache-2.0
// The text of --help.
#ifndef STALL_HELP_H
#define STALL_HELP_H

extern const char stall_help[];

#endif

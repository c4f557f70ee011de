// SPDX-License-Identifier: Apache-2.0
// Mount points.
#ifndef STALL_MOUNTS_H
#define STALL_MOUNTS_H

#include <stdbool.h>

#include "proc/target_handle.h"

// A line of /proc/PID/mountinfo. The texts are within the line.
struct stall_mount {
	int id;
	const char *device_number; // "8:1"
	const char *root, *point;
	const char *type, *device;
};
bool stall_mount_parse(char *line, struct stall_mount *ret);
// The text of all of a process, or of ours (NULL): of a host with containers there can be thousands.
// NULL: it cannot be read. Free it.
char *stall_mounts_read(const struct stall_target *target);
// The mount of a descriptor; -1: not known.
int stall_proc_mount_id(const struct stall_target *target, int fd);

#endif

// SPDX-License-Identifier: Apache-2.0
// Lines of /proc/PID/maps and smaps.
#ifndef STALL_MAPS_LINE_H
#define STALL_MAPS_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One line of /proc/PID/maps.
struct stall_maps_line {
	uint64_t start, end, offset;
	uint64_t dev; // as st_dev
	uint64_t ino;
	bool readable, writable, executable, shared;
	const char *path; // within the line, "" where there is none; still escaped
	size_t path_size;
};

// `line` has `size` bytes and no newline. False: it is not a line of maps.
bool stall_maps_line_parse(const char *line, size_t size, struct stall_maps_line *ret);

// The kernel writes a newline in a path as \012 (fs/seq_file.c mangle_path) and nothing else
// escaped. Returns the path unescaped, NULL without memory; *ret_deleted: it ended in " (deleted)",
// which is cut off.
char *stall_maps_line_path(const struct stall_maps_line *line, bool *ret_deleted);

#endif

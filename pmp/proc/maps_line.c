// SPDX-License-Identifier: Apache-2.0
#include "proc/maps_line.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/lengths.h"
#include "proc/paths.h"

struct cursor {
	const char *at, *end;
};

// Reads digits of the base and the separator after them.
static bool take_number(struct cursor *cursor, unsigned int base, char separator, uint64_t *ret)
{
	const char *start = cursor->at;
	uint64_t value = 0;

	for (; cursor->at < cursor->end; cursor->at++) {
		unsigned int digit;
		char c = *cursor->at;

		if (c >= '0' && c <= '9')
			digit = (unsigned int)(c - '0');
		else if (c >= 'a' && c <= 'f')
			digit = (unsigned int)(c - 'a') + 10;
		else
			break;
		if (digit >= base || !stall_mul(value, base, &value) ||
		    !stall_add(value, digit, &value))
			return false;
	}
	if (cursor->at == start)
		return false;
	*ret = value;
	if (cursor->at == cursor->end)
		return separator == 0;
	if (separator && *cursor->at++ != separator)
		return false;
	return true;
}

bool stall_maps_line_parse(const char *line, size_t size, struct stall_maps_line *ret)
{
	struct cursor cursor = {line, line + size};
	struct stall_maps_line parsed = {};
	uint64_t major, minor; // of 12 and 20 bits in the kernel

	if (!take_number(&cursor, 16, '-', &parsed.start) ||
	    !take_number(&cursor, 16, ' ', &parsed.end) || parsed.start >= parsed.end)
		return false;
	if (cursor.end - cursor.at < 5 || cursor.at[4] != ' ')
		return false;
	parsed.readable = cursor.at[0] == 'r';
	parsed.writable = cursor.at[1] == 'w';
	parsed.executable = cursor.at[2] == 'x';
	parsed.shared = cursor.at[3] == 's';
	cursor.at += 5;
	if (!take_number(&cursor, 16, ' ', &parsed.offset) ||
	    !take_number(&cursor, 16, ':', &major) || !take_number(&cursor, 16, ' ', &minor) ||
	    !take_number(&cursor, 10, 0, &parsed.ino))
		return false;
	parsed.dev = makedev((unsigned int)major, (unsigned int)minor);
	while (cursor.at < cursor.end && *cursor.at == ' ')
		cursor.at++;
	parsed.path = cursor.at;
	parsed.path_size = (size_t)(cursor.end - cursor.at);
	*ret = parsed;
	return true;
}

char *stall_maps_line_path(const struct stall_maps_line *line, bool *ret_deleted)
{
	size_t size = line->path_size, length = 0;
	char *path = malloc(size + 1);

	if (!path)
		return NULL;
	for (size_t i = 0; i < size; i++) {
		if (size - i >= 4 && !memcmp(line->path + i, "\\012", 4)) {
			path[length++] = '\n';
			i += 3;
		} else {
			path[length++] = line->path[i];
		}
	}
	path[length] = 0;
	*ret_deleted = stall_path_cut_deleted(path);
	return path;
}

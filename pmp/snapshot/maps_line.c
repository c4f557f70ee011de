// SPDX-License-Identifier: Apache-2.0
#include "snapshot/maps_line.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

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
			digit = c - '0';
		else if (c >= 'a' && c <= 'f')
			digit = c - 'a' + 10;
		else
			break;
		if (digit >= base || value > (UINT64_MAX - digit) / base)
			return false;
		value = value * base + digit;
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
	uint64_t major, minor;

	if (!take_number(&cursor, 16, '-', &parsed.start) ||
	    !take_number(&cursor, 16, ' ', &parsed.end) || parsed.start >= parsed.end)
		return false;
	if (cursor.end - cursor.at < 5 || cursor.at[4] != ' ')
		return false;
	parsed.readable = cursor.at[0] == 'r';
	parsed.executable = cursor.at[2] == 'x';
	cursor.at += 5;
	if (!take_number(&cursor, 16, ' ', &parsed.offset) ||
	    !take_number(&cursor, 16, ':', &major) || !take_number(&cursor, 16, ' ', &minor) ||
	    !take_number(&cursor, 10, 0, &parsed.ino))
		return false;
	parsed.dev = makedev(major, minor);
	while (cursor.at < cursor.end && *cursor.at == ' ')
		cursor.at++;
	parsed.path = cursor.at;
	parsed.path_size = cursor.end - cursor.at;
	*ret = parsed;
	return true;
}

char *stall_maps_line_path(const struct stall_maps_line *line, bool *ret_deleted)
{
	static const char suffix[] = " (deleted)";
	size_t size = line->path_size, length = 0;
	bool deleted = size > strlen(suffix) &&
		       !memcmp(line->path + size - strlen(suffix), suffix, strlen(suffix));
	char *path;

	if (deleted)
		size -= strlen(suffix);
	path = malloc(size + 1);
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
	*ret_deleted = deleted;
	return path;
}

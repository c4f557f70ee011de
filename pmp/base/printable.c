// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <string.h>

size_t stall_utf8_length(const unsigned char *bytes, size_t size)
{
	unsigned char first = bytes[0], low = 0x80, high = 0xbf;
	size_t length;

	if (first < 0x80)
		return 1;
	if (first >= 0xc2 && first <= 0xdf)
		length = 2;
	else if (first >= 0xe0 && first <= 0xef)
		length = 3;
	else if (first >= 0xf0 && first <= 0xf4)
		length = 4;
	else
		return 0;
	if (first == 0xe0)
		low = 0xa0;
	else if (first == 0xed)
		high = 0x9f;
	else if (first == 0xf0)
		low = 0x90;
	else if (first == 0xf4)
		high = 0x8f;
	if (size < length || bytes[1] < low || bytes[1] > high)
		return 0;
	for (size_t i = 2; i < length; i++)
		if (bytes[i] < 0x80 || bytes[i] > 0xbf)
			return 0;
	return length;
}

bool stall_utf8_is_control(const unsigned char *bytes, size_t length)
{
	if (length == 1)
		return bytes[0] < ' ' || bytes[0] == 0x7f;
	return length == 2 && bytes[0] == 0xc2 && bytes[1] < 0xa0;
}

void stall_make_printable(char *text, size_t size)
{
	unsigned char *bytes = (unsigned char *)text;

	for (size_t i = 0; i < size;) {
		size_t length = stall_utf8_length(bytes + i, size - i);
		bool is_kept = length && (!bytes[i] || !stall_utf8_is_control(bytes + i, length));

		length = length ? length : 1;
		if (!is_kept)
			memset(bytes + i, '?', length);
		i += length;
	}
}

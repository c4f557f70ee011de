// SPDX-License-Identifier: Apache-2.0
#include "introspect/session_text.h"

#include <stdint.h>
#include <string.h>

bool stall_session_name(const char *bytes, size_t size, size_t length, char *ret, size_t ret_size)
{
	size_t end = length == SIZE_MAX ? strnlen(bytes, size) : length;

	if (end >= ret_size || end > size || (length == SIZE_MAX && end == size))
		return false;
	for (size_t i = 0; i < end; i++)
		if ((unsigned char)bytes[i] < ' ' || bytes[i] == 0x7f)
			return false;
	memcpy(ret, bytes, end);
	ret[end] = '\0';
	return true;
}

bool stall_session_is_text(const char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		unsigned char c = bytes[i];

		if ((c < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0x7f)
			return false;
	}
	return size > 0;
}

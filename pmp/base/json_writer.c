// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <stdlib.h>
#include <string.h>

void stall_json_init(struct stall_json *json)
{
	*json = (struct stall_json){};
}

void stall_json_deinit(struct stall_json *json)
{
	free(json->data);
	*json = (struct stall_json){};
}

static bool reserve(struct stall_json *json, size_t more)
{
	if (json->failed)
		return false;
	if (json->capacity - json->size >= more)
		return true;
	size_t capacity = json->capacity ? json->capacity * 2 : 65536;
	while (capacity - json->size < more)
		capacity *= 2;
	char *data = realloc(json->data, capacity);
	if (!data) {
		json->failed = true;
		return false;
	}
	json->data = data;
	json->capacity = capacity;
	return true;
}

static void put(struct stall_json *json, const char *bytes, size_t size)
{
	if (!reserve(json, size))
		return;
	memcpy(json->data + json->size, bytes, size);
	json->size += size;
}

static void separate(struct stall_json *json)
{
	if (json->comma)
		put(json, ",", 1);
	json->comma = true;
}

void stall_json_open(struct stall_json *json, char bracket)
{
	separate(json);
	put(json, &bracket, 1);
	json->comma = false;
}

void stall_json_close(struct stall_json *json, char bracket)
{
	put(json, &bracket, 1);
	json->comma = true;
}

void stall_json_key(struct stall_json *json, const char *key)
{
	separate(json);
	put(json, "\"", 1);
	put(json, key, strlen(key));
	put(json, "\":", 2);
	json->comma = false;
}

void stall_json_colon(struct stall_json *json)
{
	put(json, ":", 1);
	json->comma = false;
}

void stall_json_null(struct stall_json *json)
{
	separate(json);
	put(json, "null", 4);
}

void stall_json_bool(struct stall_json *json, bool value)
{
	separate(json);
	put(json, value ? "true" : "false", value ? 4 : 5);
}

static void put_decimal(struct stall_json *json, uint64_t value)
{
	char text[20];
	size_t at = sizeof(text);
	do {
		text[--at] = '0' + value % 10;
		value /= 10;
	} while (value);
	put(json, text + at, sizeof(text) - at);
}

void stall_json_uint(struct stall_json *json, uint64_t value)
{
	separate(json);
	put_decimal(json, value);
}

void stall_json_int(struct stall_json *json, int64_t value)
{
	separate(json);
	if (value < 0)
		put(json, "-", 1);
	put_decimal(json, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

void stall_json_ms(struct stall_json *json, uint64_t ns)
{
	char text[] = ".000000";
	uint64_t rest = ns % 1000000;

	separate(json);
	put_decimal(json, ns / 1000000);
	for (size_t at = sizeof(text) - 2; at; at--) {
		text[at] += rest % 10;
		rest /= 10;
	}
	put(json, text, sizeof(text) - 1);
}

void stall_json_hex(struct stall_json *json, uint64_t value)
{
	char text[20];
	size_t at = sizeof(text);

	separate(json);
	text[--at] = '"';
	do {
		text[--at] = "0123456789abcdef"[value % 16];
		value /= 16;
	} while (value);
	text[--at] = 'x';
	text[--at] = '0';
	put(json, "\"", 1);
	put(json, text + at, sizeof(text) - at);
}

// The length of the UTF-8 sequence at `bytes`, 0 where it is not a valid one. (Unicode 15, table
// 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.)
static size_t utf8_length(const unsigned char *bytes, size_t size)
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

static void put_escape(struct stall_json *json, unsigned int code)
{
	static const char digits[] = "0123456789abcdef";
	char text[] = {'\\', 'u', '0', '0', digits[code >> 4 & 15], digits[code & 15]};
	put(json, text, sizeof(text));
}

static bool is_plain(unsigned char byte)
{
	return byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
}

void stall_json_string_n(struct stall_json *json, const char *string, size_t size)
{
	const unsigned char *bytes = (const unsigned char *)string;

	separate(json);
	put(json, "\"", 1);
	for (size_t i = 0; i < size;) {
		size_t plain = i;
		while (plain < size && is_plain(bytes[plain]))
			plain++;
		put(json, string + i, plain - i);
		i = plain;
		if (i == size)
			break;
		size_t length = utf8_length(bytes + i, size - i);
		if (!length) {
			put(json, "\xef\xbf\xbd", 3); // U+FFFD
			i++;
			continue;
		}
		if (bytes[i] == '"' || bytes[i] == '\\') {
			put(json, "\\", 1);
			put(json, string + i, 1);
		} else if (length == 1) {
			put_escape(json, bytes[i]);
		} else if (length == 2 && bytes[i] == 0xc2 && bytes[i + 1] < 0xa0) {
			// C1 controls: terminals take U+009B for an escape sequence.
			put_escape(json, bytes[i + 1]);
		} else {
			put(json, string + i, length);
		}
		i += length;
	}
	put(json, "\"", 1);
}

void stall_json_string(struct stall_json *json, const char *string)
{
	if (string)
		stall_json_string_n(json, string, strlen(string));
	else
		stall_json_null(json);
}

void stall_json_raw(struct stall_json *json, const char *text, size_t size)
{
	separate(json);
	put(json, text, size);
}

void stall_json_newline(struct stall_json *json)
{
	put(json, "\n", 1);
	json->comma = false;
}

void stall_json_member_bool(struct stall_json *json, const char *key, bool value)
{
	stall_json_key(json, key);
	stall_json_bool(json, value);
}

void stall_json_member_int(struct stall_json *json, const char *key, int64_t value)
{
	stall_json_key(json, key);
	stall_json_int(json, value);
}

void stall_json_member_uint(struct stall_json *json, const char *key, uint64_t value)
{
	stall_json_key(json, key);
	stall_json_uint(json, value);
}

void stall_json_member_ms(struct stall_json *json, const char *key, uint64_t ns)
{
	stall_json_key(json, key);
	stall_json_ms(json, ns);
}

void stall_json_member_hex(struct stall_json *json, const char *key, uint64_t value)
{
	stall_json_key(json, key);
	stall_json_hex(json, value);
}

void stall_json_member_string(struct stall_json *json, const char *key, const char *value)
{
	stall_json_key(json, key);
	stall_json_string(json, value);
}

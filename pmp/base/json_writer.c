// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/printable.h"

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
	if (!json->failed)
		json->failed = !stall_array_reserve(&json->data, json->size, more, &json->capacity);
	return !json->failed;
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
		text[--at] = (char)('0' + value % 10);
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
		text[at] = (char)('0' + rest % 10);
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
		size_t length = stall_utf8_length(bytes + i, size - i);
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
		} else if (stall_utf8_is_control(bytes + i, length)) {
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

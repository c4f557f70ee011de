// SPDX-License-Identifier: Apache-2.0
// Writes JSON text into memory, one line a record. Strings may hold any bytes: what is not UTF-8
// becomes U+FFFD, control characters are escaped, so a hostile name stays inert in any terminal.
#ifndef STALL_JSON_WRITER_H
#define STALL_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stall_json {
	char *data;
	size_t size, capacity;
	bool comma;  // the next value needs one before it
	bool failed; // out of memory: data is incomplete
};

void stall_json_init(struct stall_json *json);
void stall_json_deinit(struct stall_json *json);

void stall_json_open(struct stall_json *json, char bracket);
void stall_json_close(struct stall_json *json, char bracket);
// The key of the next value: a literal of ours, not escaped.
void stall_json_key(struct stall_json *json, const char *key);

// Turns the string just written into the key of the next value.
void stall_json_colon(struct stall_json *json);

void stall_json_null(struct stall_json *json);
void stall_json_bool(struct stall_json *json, bool value);
void stall_json_int(struct stall_json *json, int64_t value);
void stall_json_uint(struct stall_json *json, uint64_t value);
// Nanoseconds as a number of milliseconds: 12.345678.
void stall_json_ms(struct stall_json *json, uint64_t ns);
// As a string: "0x7f00".
void stall_json_hex(struct stall_json *json, uint64_t value);
void stall_json_string_n(struct stall_json *json, const char *bytes, size_t size);
void stall_json_string(struct stall_json *json, const char *string); // NULL becomes null
// A value that is JSON already.
void stall_json_raw(struct stall_json *json, const char *text, size_t size);
void stall_json_newline(struct stall_json *json);

// A key and its value.
void stall_json_member_bool(struct stall_json *json, const char *key, bool value);
void stall_json_member_int(struct stall_json *json, const char *key, int64_t value);
void stall_json_member_uint(struct stall_json *json, const char *key, uint64_t value);
void stall_json_member_ms(struct stall_json *json, const char *key, uint64_t ns);
void stall_json_member_hex(struct stall_json *json, const char *key, uint64_t value);
void stall_json_member_string(struct stall_json *json, const char *key, const char *value);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "command/symbolize_lines.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json_writer.h"
#include "base/output.h"
#include "unwind/sandbox.h"
#include "unwind/symbolize.h"

#define MAX_LINE (64 << 20)
#define MEMORY_LIMIT (UINT64_C(4) << 30)

struct request {
	json_int_t id;
	const char *build_id, *path; // NULL: unknown
	uint64_t *addresses;
	bool *callers;
	size_t count;
};

static void request_deinit(struct request *request)
{
	free(request->addresses);
	free(request->callers);
}

static struct stall_error *bad_request(const char *what)
{
	return stall_error_create(STALL_ERROR_FORMAT, "request: %s", what);
}

static bool take_address(const json_t *value, uint64_t *ret)
{
	const char *text = json_string_value(value);
	char *rest;

	if (!text || strncmp(text, "0x", 2) || !text[2])
		return false;
	errno = 0;
	*ret = strtoull(text + 2, &rest, 16);
	return !errno && !*rest;
}

// The strings live as long as the JSON.
static struct stall_error *parse_request(json_t *json, struct request *ret)
{
	json_t *offsets = json_object_get(json, "offsets");
	json_t *callers = json_object_get(json, "callers");
	json_t *id = json_object_get(json, "id");

	if (!json_is_integer(id))
		return bad_request("\"id\" is not a number");
	ret->id = json_integer_value(id);
	ret->build_id = json_string_value(json_object_get(json, "build_id"));
	ret->path = json_string_value(json_object_get(json, "path"));
	if (!json_is_array(offsets))
		return bad_request("\"offsets\" is not a list");
	ret->count = json_array_size(offsets);
	if (callers && json_array_size(callers) != ret->count)
		return bad_request("\"callers\" is not as long as \"offsets\"");
	ret->addresses = calloc(ret->count + 1, sizeof(*ret->addresses));
	ret->callers = calloc(ret->count + 1, sizeof(*ret->callers));
	if (!ret->addresses || !ret->callers)
		return &stall_enomem;
	for (size_t i = 0; i < ret->count; i++) {
		if (!take_address(json_array_get(offsets, i), &ret->addresses[i]))
			return bad_request("an offset is not a string of hex digits behind 0x");
		ret->callers[i] = json_is_true(json_array_get(callers, i));
	}
	return NULL;
}

static void write_symbol(struct stall_json *json, const struct stall_symbolized *symbol)
{
	if (!symbol->symbol) {
		stall_json_null(json);
		return;
	}
	stall_json_open(json, '{');
	stall_json_member_string(json, "symbol", symbol->symbol);
	stall_json_member_string(json, "linkage", symbol->linkage);
	stall_json_member_uint(json, "symbol_offset", symbol->offset);
	stall_json_close(json, '}');
}

static void write_answer(struct stall_json *json, const struct request *request, const char *file,
			 const struct stall_error *failed, const struct stall_symbolized *symbols)
{
	stall_json_open(json, '{');
	stall_json_member_int(json, "id", request->id);
	stall_json_member_string(json, "file", file);
	stall_json_member_string(json, "error", failed ? failed->message : NULL);
	stall_json_key(json, "symbols");
	stall_json_open(json, '[');
	for (size_t i = 0; i < request->count; i++) {
		if (failed)
			stall_json_null(json);
		else
			write_symbol(json, &symbols[i]);
	}
	stall_json_close(json, ']');
	stall_json_close(json, '}');
	stall_json_newline(json);
}

static struct stall_error *answer(struct stall_symbolizer *symbolizer, const char *line,
				  size_t size, struct stall_json *json)
{
	json_auto_t *parsed = json_loadb(line, size, 0, NULL);
	_cleanup_(request_deinit) struct request request = {};
	_cleanup_free_ struct stall_symbolized *symbols = NULL;
	const char *file = NULL;

	if (!parsed)
		return bad_request("not JSON");
	struct stall_error *err = parse_request(parsed, &request);
	if (err)
		return err;
	symbols = calloc(request.count + 1, sizeof(*symbols));
	if (!symbols)
		return &stall_enomem;
	_cleanup_error_ struct stall_error *failed =
		stall_symbolizer_lookup(symbolizer, request.build_id, request.path,
					request.addresses, request.callers, request.count, symbols,
					&file);
	write_answer(json, &request, file, failed, symbols);
	return json->failed ? &stall_enomem : NULL;
}

static void symbolizer_destroyp(struct stall_symbolizer **symbolizer)
{
	stall_symbolizer_destroy(*symbolizer);
}

struct stall_error *stall_symbolize_lines(const char *const *debug_dirs, size_t count, int in,
					  int out)
{
	const struct stall_sandbox_options sandbox = {
		.keep_uid = true,
		.memory_limit = MEMORY_LIMIT,
	};
	_cleanup_(symbolizer_destroyp) struct stall_symbolizer *symbolizer = NULL;
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	_cleanup_(stall_json_deinit) struct stall_json json = {};
	_cleanup_fclose_ FILE *file = fdopen(in, "r");
	_cleanup_free_ char *line = NULL;
	size_t capacity = 0;
	ssize_t size;

	if (!file)
		return stall_error_os(errno, "cannot read requests from standard input");
	struct stall_error *err = stall_output_create_fd(out, &output);
	if (!err)
		err = stall_sandbox_enter(&sandbox);
	if (!err)
		err = stall_symbolizer_create(debug_dirs, count, &symbolizer);
	while (!err && (size = getline(&line, &capacity, file)) > 0) {
		json.size = 0;
		if (size > MAX_LINE)
			return bad_request("longer than 64 MB");
		err = answer(symbolizer, line, size, &json);
		if (!err)
			err = stall_output_write(output, json.data, json.size);
	}
	return err;
}

// SPDX-License-Identifier: Apache-2.0
#include "command/symbolize_lines.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json_writer.h"
#include "base/output.h"
#include "command/feature_report.h"
#include "sandbox/untrusted.h"
#include "unwind/symbolize.h"

#define MAX_LINE (64 << 20)
#define MEMORY_LIMIT (UINT64_C(4) << 30)
#define MAX_CPU_SECONDS 600

struct request {
	uint64_t id;
	const char *build_id, *path; // in the line; NULL: unknown
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

static bool take_id(const char *text, uint64_t *ret)
{
	char *rest;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*ret = strtoull(text, &rest, 10);
	return !errno && !*rest && *ret <= INT64_MAX;
}

// strtoull() alone would take spaces and signs, and no digits.
static bool take_address(const char *text, uint64_t *ret, bool *ret_caller)
{
	char *rest;

	if (strncmp(text, "0x", 2) || !isxdigit((unsigned char)text[2]))
		return false;
	errno = 0;
	*ret = strtoull(text, &rest, 16);
	*ret_caller = !strcmp(rest, "-1");
	return !errno && (*ret_caller || !*rest);
}

static struct stall_error *take_addresses(char *words, struct request *ret)
{
	size_t count = 1;

	for (const char *at = words; *at; at++)
		count += *at == ',';
	ret->addresses = calloc(count, sizeof(*ret->addresses));
	ret->callers = calloc(count, sizeof(*ret->callers));
	if (!ret->addresses || !ret->callers)
		return &stall_enomem;
	for (const char *word; (word = strsep(&words, ","));) {
		if (!take_address(word, &ret->addresses[ret->count], &ret->callers[ret->count]))
			return bad_request("an address is not hex digits behind 0x");
		ret->count++;
	}
	return NULL;
}

// ID ADDRESS[,...] BUILD-ID [PATH]: a path may have spaces. Words of the line are cut out of it.
static struct stall_error *parse_request(char *line, struct request *ret)
{
	const char *id = strsep(&line, " ");
	char *addresses = strsep(&line, " ");
	const char *build_id = strsep(&line, " ");

	if (!take_id(id, &ret->id))
		return bad_request("the first word is not a number");
	if (!addresses || !build_id || !*build_id)
		return bad_request("not ID ADDRESS[,...] BUILD-ID [PATH]");
	ret->build_id = strcmp(build_id, "-") ? build_id : NULL;
	ret->path = line && *line ? line : NULL;
	return take_addresses(addresses, ret);
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
			 bool is_pack, const struct stall_error *failed,
			 const struct stall_symbolized *symbols)
{
	stall_json_open(json, '{');
	stall_json_member_uint(json, "id", request->id);
	stall_json_member_string(json, "file", file);
	stall_json_member_bool(json, "is_pack", is_pack);
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

static struct stall_error *answer(struct stall_symbolizer *symbolizer, char *line,
				  struct stall_json *json)
{
	_cleanup_(request_deinit) struct request request = {};
	_cleanup_free_ struct stall_symbolized *symbols = NULL;
	const char *file = NULL;
	bool is_pack = false;

	struct stall_error *err = parse_request(line, &request);
	if (err)
		return err;
	symbols = calloc(request.count + 1, sizeof(*symbols));
	if (!symbols)
		return &stall_enomem;
	_cleanup_error_ struct stall_error *failed =
		stall_symbolizer_lookup(symbolizer, request.build_id, request.path,
					request.addresses, request.callers, request.count, symbols,
					&file, &is_pack);
	write_answer(json, &request, file, is_pack, failed, symbols);
	return json->failed ? &stall_enomem : NULL;
}

static void symbolizer_destroyp(struct stall_symbolizer **symbolizer)
{
	stall_symbolizer_destroy(*symbolizer);
}

struct lines {
	struct stall_symbolizer *symbolizer;
	FILE *in;
};

static struct stall_error *answer_all(void *arg, struct stall_output *output, void *ret_answer)
{
	const struct lines *lines = arg;
	_cleanup_(stall_json_deinit) struct stall_json json = {};
	_cleanup_free_ char *line = NULL;
	struct stall_error *err = NULL;
	size_t capacity = 0;
	ssize_t size;

	while (!err && (size = getline(&line, &capacity, lines->in)) > 0) {
		json.size = 0;
		if (size > MAX_LINE)
			return bad_request("longer than 64 MB");
		if (strlen(line) != (size_t)size)
			return bad_request("a line has a zero byte");
		line[strcspn(line, "\n")] = '\0';
		err = answer(lines->symbolizer, line, &json);
		if (!err)
			err = stall_output_write(output, json.data, json.size);
	}
	return err;
}

struct stall_error *stall_symbolize_lines(const struct stall_symbolizer_options *options, int in,
					  int out)
{
	_cleanup_(symbolizer_destroyp) struct stall_symbolizer *symbolizer = NULL;
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	_cleanup_fclose_ FILE *file = fdopen(in, "r");
	struct lines lines = {.in = file};
	const struct stall_untrusted work = {
		.path = "symbolize",
		.what = "file",
		.run = answer_all,
		.arg = &lines,
		.reads_input = true,
		.memory_limit = MEMORY_LIMIT,
		.cpu_seconds = MAX_CPU_SECONDS,
		.max_bytes = UINT64_MAX,
	};
	unsigned int missing;

	if (!file)
		return stall_error_os(errno, "cannot read requests from standard input");
	struct stall_error *err = stall_output_create_fd(out, &output);
	if (!err)
		err = stall_symbolizer_create(options, &symbolizer);
	if (err)
		return err;
	lines.symbolizer = symbolizer;
	err = stall_untrusted_run(&work, output, NULL, &missing);
	if (!err)
		stall_missing_layers_report(missing);
	return err;
}

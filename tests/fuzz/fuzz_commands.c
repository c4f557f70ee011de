// SPDX-License-Identifier: Apache-2.0
// The input is text: words of a command line, one a line, up to an empty line; then lines of `serve` and
// of `symbolize`. Commands that begin a capture or a watch are left out.
#include "command/symbolize_lines.c" // NOLINT: a request is parsed behind its sandbox

#include <fcntl.h>
#include <unistd.h>

#include "base/layout.h"
#include "command/options.h"
#include "fuzz.h"
#include "inputs.h"
#include "lock/memory_locks.h"
#include "serve/commands.h"

#define WORDS 64

static void parse_words(char *text)
{
	char *words[WORDS + 1] = {"stallscope-probe"};
	struct stall_options options;
	int count = 1;

	for (char *word; count < WORDS && (word = strsep(&text, "\n"));)
		words[count++] = word;
	struct stall_error *err = stall_options_init(&options, count, words);
	if (!err)
		stall_options_deinit(&options);
	stall_error_destroy(err);
}

static bool is_harmless(const char *line)
{
	static const char *const begins[] = {"snap", "burst", "watch", "target", "layout"};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (!strncmp(line, begins[i], strlen(begins[i])))
			return false;
	return true;
}

static void serve_lines(const char *lines, size_t size)
{
	static struct stall_commands commands;
	static int null = -1;
	const struct stall_serve_options serve_options = {};
	struct stall_server server = {.options = &serve_options};
	int in = file_of(lines, size);

	if (null < 0)
		null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	must(null >= 0 && lseek(in, 0, SEEK_SET) == 0);
	server.out = null;
	stall_watch_options_init(&server.watch_options);
	stall_commands_init(&commands);
	while (!commands.ended && !commands.quit) {
		must(!stall_commands_run(&commands, &server, in));
		must(commands.lines.used < commands.lines.size);
	}
	stall_layout_deinit(&server.layout);
	close(in);
}

static void parse_line(char *line)
{
	struct stall_layout layout = {};
	struct request request = {};

	stall_error_destroy(stall_layout_add(&layout, line));
	stall_layout_deinit(&layout);
	stall_error_destroy(stall_memory_layouts_check(line));
	struct stall_error *err = parse_request(line, &request);
	if (!err)
		must(request.count && request.addresses && request.callers);
	stall_error_destroy(err);
	request_deinit(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *harmless = malloc(size + 2);
	size_t used = 0;

	must(text && harmless);
	memcpy(text, data, size);
	text[size] = '\0';
	char *lines = strstr(text, "\n\n");
	if (lines) {
		*lines = '\0';
		lines += 2;
	}
	parse_words(text);
	for (char *line; (line = strsep(&lines, "\n"));) {
		size_t length = strlen(line);

		if (is_harmless(line)) {
			memcpy(harmless + used, line, length);
			harmless[used + length] = '\n';
			used += length + 1;
		}
		parse_line(line);
	}
	serve_lines(harmless, used);
	free(harmless);
	free(text);
	return 0;
}

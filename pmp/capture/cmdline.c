// SPDX-License-Identifier: Apache-2.0
#include "capture/cmdline.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/read_child.h"

#define MAX_NAME 64
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"
#define PATH LETTERS DIGITS "_./+-"
#define STARTS_WITH(s, p) (!strncmp(s, p, strlen(p)))

// As in stallscope/redaction/commandline.py, which has the rules in words.
static const char *const harmless[] = {
#include "shown-options.inc"
};

static bool is_of(const char *text, size_t size, const char *characters)
{
	return size && strspn(text, characters) >= size;
}

static bool is_harmless(const char *name, size_t size)
{
	char plain[MAX_NAME + 1];

	if (size > MAX_NAME)
		return false;
	for (size_t i = 0; i < size; i++)
		plain[i] = name[i] == '_' ? '-' : size > 1 ? tolower(name[i]) : name[i];
	plain[size] = '\0';
	const char *found = STARTS_WITH(plain, "loose-") ? plain + strlen("loose-") : plain;
	for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
		if (!strcmp(found, harmless[i]))
			return true;
	return false;
}

static bool is_value(const char *text)
{
	return is_of(text, strlen(text), PATH ",") ||
	       is_of(text, strlen(text), DIGITS "ABCDEFabcdef.:*,");
}

// The name of an option, or of what "name=value" sets.
static size_t name_length(const char *text, const char *first)
{
	size_t size = *text && strchr(first, *text) ? strspn(text, LETTERS DIGITS "_.-") : 0;

	return size <= MAX_NAME ? size : 0;
}

static bool is_program(const char *text)
{
	static const char *const folders[] = {"/bin/", "/lib/",	 "/lib32/", "/lib64/",
					      "/opt/", "/sbin/", "/usr/"};

	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
		if (STARTS_WITH(text, folders[i]))
			return is_of(text, strlen(text), PATH);
	return false;
}

static bool is_path(const char *text, size_t size)
{
	return is_of(text, size && text[size - 1] == ':' ? size - 1 : size, PATH);
}

static char *show_title(const char *text)
{
	char *shown;

	if (is_path(text, strlen(text)) ||
	    (STARTS_WITH(text, "postgres: ") &&
	     is_of(text, strlen(text), LETTERS DIGITS "_ .:@()[]/,-")))
		return strdup(text);
	const char *blank = strchr(text, ' ');
	if (!blank || !is_path(text, blank - text))
		return strdup("?");
	return asprintf(&shown, "%.*s ?", (int)(blank - text), text) < 0 ? NULL : shown;
}

// "name=value". Secrets in base64 end with the sign: they are no names.
static char *show_setting(const char *text, bool with_value)
{
	size_t size = name_length(text, LETTERS "_");
	const char *value = text + size + 1;
	char *shown;

	if (!size || text[size] != '=' || !*value || *value == '=')
		return strdup("?");
	if (with_value && is_harmless(text, size) && is_value(value))
		return strdup(text);
	return asprintf(&shown, "%.*s=?", (int)size, text) < 0 ? NULL : shown;
}

// What the next argument is the value of: `*next`, of a length.
struct option {
	const char *name;
	size_t size;
};

static char *show_option(const char *text, struct option *next)
{
	size_t size = STARTS_WITH(text, "--") ? name_length(text + 2, LETTERS) : 0;
	const char *end = text + 2 + size;
	char *shown;

	if (!strcmp(text, "--"))
		return strdup(text);
	if (size && !*end) {
		*next = (struct option){text + 2, size};
		return strdup(text);
	}
	if (size && *end == '=') {
		if (is_harmless(text + 2, size) && is_value(end + 1))
			return strdup(text);
		return asprintf(&shown, "%.*s=?", (int)(end - text), text) < 0 ? NULL : shown;
	}
	if (!strchr(LETTERS DIGITS, text[1])) {
		*next = (struct option){"?", 1};
		return strdup("-?");
	}
	if (!text[2]) {
		*next = (struct option){text + 1, 1};
		return strdup(text);
	}
	return asprintf(&shown, "-%c?", text[1]) < 0 ? NULL : shown;
}

static char *show(const char *text, bool is_first, struct option *before)
{
	struct option of = *before;

	*before = (struct option){};
	if (is_first)
		return show_title(text);
	if (text[0] == '-' && text[1])
		return show_option(text, before);
	if (of.size == 1 && of.name[0] == 'c')
		return show_setting(text, true);
	if (of.size)
		return strdup(is_harmless(of.name, of.size) && is_value(text) ? text : "?");
	if (!*text || !strcmp(text, "-") || is_program(text))
		return strdup(text);
	return show_setting(text, false);
}

static void cmdline_deinitp(struct stall_cmdline *cmdline)
{
	stall_cmdline_deinit(cmdline);
}

struct stall_error *stall_cmdline_parse(const char *text, size_t size, struct stall_cmdline *ret)
{
	__attribute__((__cleanup__(cmdline_deinitp))) struct stall_cmdline cmdline = {};
	_cleanup_free_ char *copy = malloc(size + 1);
	size_t capacity = 0;
	struct option before = {};

	if (!copy)
		return &stall_enomem;
	memcpy(copy, text, size);
	copy[size] = '\0';
	for (size_t at = 0; at < size; at += strlen(copy + at) + 1) {
		if (!stall_array_reserve(&cmdline.arguments, cmdline.count, 1, &capacity))
			return &stall_enomem;
		char *shown = show(copy + at, !cmdline.count, &before);
		if (!shown)
			return &stall_enomem;
		cmdline.arguments[cmdline.count++] = shown;
	}
	*ret = cmdline;
	cmdline = (struct stall_cmdline){};
	return NULL;
}

void stall_cmdline_deinit(struct stall_cmdline *cmdline)
{
	for (size_t i = 0; i < cmdline->count; i++)
		free(cmdline->arguments[i]);
	free(cmdline->arguments);
	*cmdline = (struct stall_cmdline){};
}

struct stall_error *stall_cmdline_read(const struct stall_target *target, struct stall_cmdline *ret)
{
	_cleanup_free_ char *text = malloc(STALL_MAX_CMDLINE);

	if (!text)
		return &stall_enomem;
	size_t size = stall_read_child_text(target, "cmdline", text, STALL_MAX_CMDLINE);
	return stall_cmdline_parse(text, size, ret);
}

// SPDX-License-Identifier: Apache-2.0
#include "capture/cmdline.h"

#include <stdbool.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/read_child.h"

#define HIDDEN "***"

// wsrep_sst_auth holds "user:password". As in collectors/processes.py.
static const char *const secret_words[] = {"passw",	 "pwd",	      "passphrase", "secret",
					   "credential", "token",     "apikey",	    "api_key",
					   "api-key",	 "accesskey", "access_key", "access-key",
					   "sst_auth",	 "sst-auth"};

// The size of a token is no secret: ngram_token_size.
static const char *find_word(const char *argument, const char *word)
{
	const char *found = strcasestr(argument, word);

	while (found && !strcmp(word, "token") &&
	       (!strncasecmp(found, "token_size", 10) || !strncasecmp(found, "token-size", 10)))
		found = strcasestr(found + 1, word);
	return found;
}

// The first of them in the argument.
static const char *find_secret_word(const char *argument)
{
	const char *first = NULL;

	for (size_t i = 0; i < sizeof(secret_words) / sizeof(secret_words[0]); i++) {
		const char *found = find_word(argument, secret_words[i]);
		if (found && (!first || found < first))
			first = found;
	}
	return first;
}

// user:password@ in a URL.
static char *hide_url(const char *argument)
{
	const char *scheme = strstr(argument, "://");
	if (!scheme)
		return NULL;
	const char *user = scheme + 3;
	size_t authority = strcspn(user, "/?#");
	const char *at = memrchr(user, '@', authority);
	const char *colon = at ? memchr(user, ':', at - user) : NULL;
	char *hidden = NULL;
	if (colon &&
	    asprintf(&hidden, "%.*s:" HIDDEN "%s", (int)(colon - argument), argument, at) < 0)
		hidden = NULL;
	return hidden;
}

// Writes the part of the argument that may be shown. `*secret_next`: the value is the next
// argument.
static char *redact(const char *argument, bool *secret_next)
{
	char *shown;

	if (*secret_next && argument[0] != '-') {
		*secret_next = false;
		return strdup(HIDDEN);
	}
	*secret_next = false;
	if (argument[0] == '-' && argument[1] == 'p' && argument[2])
		return strdup("-p" HIDDEN);
	const char *word = find_secret_word(argument);
	const char *equals = word ? strchr(word, '=') : NULL;
	if (equals) {
		// Everything after it: a value may hold blanks and more "name=value".
		if (asprintf(&shown, "%.*s=" HIDDEN, (int)(equals - argument), argument) < 0)
			return NULL;
		return shown;
	}
	*secret_next = word && argument[0] == '-' && !strchr(argument, '=');
	shown = hide_url(argument);
	return shown ? shown : strdup(argument);
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
	bool secret_next = false;

	if (!copy)
		return &stall_enomem;
	memcpy(copy, text, size);
	copy[size] = '\0';
	for (size_t at = 0; at < size; at += strlen(copy + at) + 1) {
		if (!stall_array_reserve(&cmdline.arguments, cmdline.count, 1, &capacity))
			return &stall_enomem;
		char *shown = redact(copy + at, &secret_next);
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

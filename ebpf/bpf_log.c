// SPDX-License-Identifier: Apache-2.0
#include "ebpf/bpf_log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

static struct stall_bpf_log *current;

// The verifier's log comes as one long text: what it refused stands before its count of
// instructions ("processed N insns").
static void keep_verifier_line(struct stall_bpf_log *log, char *text)
{
	char *end = strstr(text, "\nprocessed ");

	if (!end)
		return;
	*end = 0;
	char *line = strrchr(text, '\n');
	snprintf(log->text, sizeof(log->text), "%.500s", line ? line + 1 : text);
}

static int keep(enum libbpf_print_level level, const char *format, va_list args)
{
	_cleanup_free_ char *text =
		NULL; // a verifier's log may have megabytes, and ends in the reason

	if (level != LIBBPF_WARN || !current || vasprintf(&text, format, args) < 0)
		return 0;
	if (strstr(text, "BEGIN PROG LOAD LOG"))
		keep_verifier_line(current, text);
	else if (!current->text[0])
		snprintf(current->text, sizeof(current->text), "%.*s", (int)strcspn(text, "\n"),
			 text);
	return 0;
}

void stall_bpf_log_begin(struct stall_bpf_log *log)
{
	log->text[0] = 0;
	log->outer = current;
	current = log;
	log->previous = libbpf_set_print(keep);
}

void stall_bpf_log_end(struct stall_bpf_log *log)
{
	libbpf_set_print(log->previous);
	current = log->outer;
}

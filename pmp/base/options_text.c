// SPDX-License-Identifier: Apache-2.0
#include "base/options_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stall_error *stall_usage(const char *format, ...)
{
	char message[512];
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	return stall_error_create(STALL_ERROR_USAGE, "%s; see %s --help", message,
				  program_invocation_short_name);
}

struct stall_error *stall_parse_number(const char *name, const char *text, uint64_t min,
				       uint64_t max, uint64_t *ret)
{
	char *rest;

	errno = 0;
	unsigned long long value = strtoull(text, &rest, 10);
	if (errno || *rest || text[0] < '0' || text[0] > '9' || value < min || value > max)
		return stall_usage("--%s \"%s\": not a number from %" PRIu64 " to %" PRIu64, name,
				   text, min, max);
	*ret = value;
	return NULL;
}

// Digits, and at most one point with digits on both sides.
static bool is_decimal(const char *text)
{
	static const char digits[] = "0123456789";
	size_t whole = strspn(text, digits);

	if (!whole)
		return false;
	if (!text[whole])
		return true;
	size_t fraction = strspn(text + whole + 1, digits);
	return text[whole] == '.' && fraction && !text[whole + 1 + fraction];
}

static struct stall_error *parse_time(const char *name, const char *text, const char *unit,
				      double unit_ns, unsigned int max, uint64_t *ret_ns)
{
	double value = is_decimal(text) ? strtod(text, NULL) : -1;

	if (value < 0 || value > max)
		return stall_usage("--%s \"%s\": not a number of %s from 0 to %u", name, text, unit,
				   max);
	*ret_ns = (uint64_t)(value * unit_ns + 0.5);
	return NULL;
}

struct stall_error *stall_parse_ms(const char *name, const char *text, uint64_t *ret_ns)
{
	return parse_time(name, text, "milliseconds", 1e6, 3600 * 1000, ret_ns);
}

struct stall_error *stall_parse_seconds(const char *name, const char *text, uint64_t *ret_ns)
{
	return parse_time(name, text, "seconds", 1e9, 366 * 86400, ret_ns);
}

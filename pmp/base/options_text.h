// SPDX-License-Identifier: Apache-2.0
// Values on the command line.
#ifndef STALL_OPTIONS_TEXT_H
#define STALL_OPTIONS_TEXT_H

#include <stdint.h>

#include "base/error.h"

// An error of usage, which ends with where to read more.
struct stall_error *stall_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct stall_error *stall_parse_number(const char *name, const char *text, uint64_t min,
				       uint64_t max, uint64_t *ret);
// With a fraction or without; milliseconds up to an hour, seconds up to a year.
struct stall_error *stall_parse_ms(const char *name, const char *text, uint64_t *ret_ns);
struct stall_error *stall_parse_seconds(const char *name, const char *text, uint64_t *ret_ns);

#endif

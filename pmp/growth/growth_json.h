// SPDX-License-Identifier: Apache-2.0
// What was found, as lines of JSON (docs/probe.md).
#ifndef STALL_GROWTH_JSON_H
#define STALL_GROWTH_JSON_H

#include <stdbool.h>

#include "base/json_writer.h"

#define STALL_GROWTH_SCHEMA "stallscope.growth/1"

struct stall_growth;

// A line each: what is recorded and what is not; the result. *ret_partial: some of it is not known.
void stall_growth_write_ready(const struct stall_growth *growth, struct stall_json *json);
void stall_growth_write_end(const struct stall_growth *growth, struct stall_json *json,
			    bool *ret_partial);

#endif

// SPDX-License-Identifier: Apache-2.0
// Lines of stallscope.waits/1.
#ifndef STALL_WATCH_LINE_H
#define STALL_WATCH_LINE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/json_writer.h"

struct stall_watch;

// One line of stallscope.waits/1: what happened since the line before, or since the start (`final`).
struct stall_error *stall_watch_write(struct stall_watch *watch, bool final,
				      struct stall_json *json);

#endif

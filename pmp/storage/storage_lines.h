// SPDX-License-Identifier: Apache-2.0
// Writes a line of stallscope.storage-files/1 (docs/probe.md).
#ifndef STALL_STORAGE_LINES_H
#define STALL_STORAGE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/json_writer.h"
#include "ebpf/wait_handler.h"
#include "ebpf/waits.h"
#include "snapshot/process_io.h"
#include "storage/storage_files.h"

struct stall_storage_row {
	struct stall_wait_key key;
	const struct stall_storage_file *file; // NULL: unknown
	struct stall_storage_stat sums;
};

struct stall_storage_line {
	pid_t pid;
	uint64_t length_ns;
	bool final, ended;
	struct stall_storage_row *rows; // of this process; they are sorted
	size_t row_count;
	const char *charged_why_not;	   // NULL: charged bytes are known
	const struct stall_process_io *io; // since the start; NULL: unknown
	const uint64_t *lost;		   // by enum stall_wait_lost
	const struct stall_wait_program *programs;
	size_t program_count;
};

// An object, without a newline.
struct stall_error *stall_storage_line_write(struct stall_storage_line *line,
					     struct stall_json *json);

#endif

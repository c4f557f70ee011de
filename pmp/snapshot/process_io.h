// SPDX-License-Identifier: Apache-2.0
// /proc/PID/io.
#ifndef STALL_PROCESS_IO_H
#define STALL_PROCESS_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "proc/target.h"

struct stall_process_io {
	uint64_t wchar, syscw, read_bytes, write_bytes, cancelled_write_bytes;
};

// False: it cannot be read. The kernel walks over all threads of the process for it.
bool stall_process_io_read(const struct stall_target *target, struct stall_process_io *ret);

#endif

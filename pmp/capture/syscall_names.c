// SPDX-License-Identifier: Apache-2.0
#include "capture/syscall_names.h"

#include <stddef.h>

static const char *const names[] = {
#include "syscall-names.inc"
};

const char *stall_syscall_name(int64_t number)
{
	if (number < 0 || (uint64_t)number >= sizeof(names) / sizeof(names[0]))
		return NULL;
	return names[number];
}

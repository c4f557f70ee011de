// SPDX-License-Identifier: Apache-2.0
#include "unwind/unwound.h"

#include <stdlib.h>

const char *stall_unwind_end_name(enum stall_unwind_end end)
{
	static const char *const names[] = {
		[STALL_UNWIND_COMPLETE] = "complete",
		[STALL_UNWIND_NO_REGISTERS] = "no-registers",
		[STALL_UNWIND_NO_CFI] = "no-cfi",
		[STALL_UNWIND_NO_MEMORY] = "no-memory",
		[STALL_UNWIND_BAD_CFI] = "bad-cfi",
		[STALL_UNWIND_LIMIT] = "limit",
		[STALL_UNWIND_NOT_TRIED] = "not-tried",
	};

	return names[end];
}

static void storage_destroy(struct stall_unwound_storage *storage)
{
	if (!storage)
		return;
	free(storage->strings);
	free(storage->indexes);
	free(storage->modules);
	free(storage);
}

void stall_unwound_deinit(struct stall_unwound *unwound)
{
	free(unwound->frames);
	free(unwound->stacks);
	free(unwound->modules);
	storage_destroy(unwound->storage);
	*unwound = (struct stall_unwound){};
}

// SPDX-License-Identifier: Apache-2.0
#include "waits/watch_state.h"

struct stall_error *stall_watch_lose_entry(struct stall_watch *watch, struct stall_error *err)
{
	if (!err || err->code != STALL_ERROR_LIMIT)
		return err;
	watch->lost[STALL_WATCH_LOST_ENTRIES]++;
	stall_error_destroy(err);
	return NULL;
}

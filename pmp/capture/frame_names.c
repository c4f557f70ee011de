// SPDX-License-Identifier: Apache-2.0
#include "capture/frame_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash_index.h"

// Frames of one function share its strings.
static uint32_t find_same(const struct stall_hash_index *index, uint64_t hash,
			  const struct stall_unwound *unwound, const struct stall_frame *frame)
{
	size_t at = 0;
	uint32_t found;

	while ((found = stall_hash_index_next(index, hash, &at)) != STALL_HASH_END)
		if (unwound->frames[found].symbol == frame->symbol &&
		    unwound->frames[found].linkage == frame->linkage)
			break;
	return found;
}

struct stall_error *stall_frame_names_init(struct stall_frame_names *names,
					   const struct stall_unwound *unwound)
{
	_cleanup_(stall_hash_index_deinit) struct stall_hash_index index = {};
	_cleanup_free_ uint32_t *same = calloc(unwound->frame_count + 1, sizeof(*same));
	size_t repeated = 0;

	if (!same)
		return &stall_enomem;
	for (size_t i = 0; i < unwound->frame_count; i++) {
		const struct stall_frame *frame = &unwound->frames[i];
		const void *key[] = {frame->symbol, frame->linkage};
		uint64_t hash = stall_hash(key, sizeof(key));

		same[i] = UINT32_MAX;
		if (!frame->symbol)
			continue;
		same[i] = find_same(&index, hash, unwound, frame);
		if (same[i] != UINT32_MAX)
			repeated += strlen(frame->symbol) +
				    (frame->linkage ? strlen(frame->linkage) : 0);
		else if (!stall_hash_index_add(&index, hash, i))
			return &stall_enomem;
	}
	names->same = repeated > STALL_MAX_REPEATED_NAMES ? no_cleanup_ptr(same) : NULL;
	return NULL;
}

void stall_frame_names_deinit(struct stall_frame_names *names)
{
	free(names->same);
}

// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_source.h"

void stall_wait_source_options_init(struct stall_wait_source_options *options)
{
	*options = (struct stall_wait_source_options){
		.backend = "auto",
		.kinds = (1U << STALL_WAIT_KINDS) - 1,
		.uprobes = true,
	};
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		options->threshold_ns[i] = 100 * 1000000;
}

void stall_wait_source_deinit(struct stall_wait_source *source)
{
	if (source->calls)
		source->calls->destroy(source->state);
	*source = (struct stall_wait_source){};
}

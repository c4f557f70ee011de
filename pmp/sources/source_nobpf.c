// SPDX-License-Identifier: Apache-2.0
// Stands in for source_bpf.c where the program was built without BPF.
#include "sources/sources.h"
#include "waits/wait_source.h"

struct stall_error *stall_wait_source_bpf(const struct stall_wait_source_options *options,
					  struct stall_wait_source *ret)
{
	return stall_error_create(
		STALL_ERROR_UNSUPPORTED,
		"waits cannot be watched: this stallscope-probe was built without "
		"BPF");
}

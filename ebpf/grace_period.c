// SPDX-License-Identifier: Apache-2.0
#include "ebpf/grace_period.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <unistd.h>

#include "ebpf/bpf_error.h"

// A map in a map: where user space replaces it, the kernel waits for a grace period of RCU, in
// whose readers all programs run that do not sleep (maybe_wait_bpf_programs() of
// kernel/bpf/syscall.c, since Linux 4.20). membarrier(2) does the same, but not where a CPU is
// nohz_full: it fails with EINVAL there (kernel/sched/membarrier.c).
struct stall_error *stall_grace_period_init(struct stall_grace_period *grace_period)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts);
	struct stall_bpf_log log;
	struct stall_grace_period made = STALL_GRACE_PERIOD_NONE;

	stall_bpf_log_begin(&log);
	made.inner = bpf_map_create(BPF_MAP_TYPE_ARRAY, "grace_inner", 4, 4, 1, NULL);
	opts.inner_map_fd = made.inner;
	if (made.inner >= 0)
		made.outer =
			bpf_map_create(BPF_MAP_TYPE_ARRAY_OF_MAPS, "grace_outer", 4, 4, 1, &opts);
	int errnum = errno;
	stall_bpf_log_end(&log);
	if (made.outer < 0) {
		stall_grace_period_deinit(&made);
		return stall_error_os(errnum, "cannot make a BPF map of maps");
	}
	*grace_period = made;
	return NULL;
}

void stall_grace_period_deinit(struct stall_grace_period *grace_period)
{
	if (grace_period->outer >= 0)
		close(grace_period->outer);
	if (grace_period->inner >= 0)
		close(grace_period->inner);
	*grace_period = STALL_GRACE_PERIOD_NONE;
}

struct stall_error *stall_grace_period_wait(const struct stall_grace_period *grace_period)
{
	int key = 0;

	if (bpf_map_update_elem(grace_period->outer, &key, &grace_period->inner, BPF_ANY) < 0)
		return stall_error_os(errno, "cannot wait for the end of BPF programs");
	return NULL;
}

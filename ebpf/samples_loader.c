// SPDX-License-Identifier: Apache-2.0
#include "ebpf/samples_loader.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>

#include "ebpf/bpf_error.h"
#include "ebpf/pid_set.h"
#include "samples.skel.h"

struct stall_bpf_samples {
	struct samples *skeleton;
	struct stall_pid_set tgids;
};

static int load(unsigned int pidns, struct samples **ret)
{
	struct samples *skeleton = samples__open();

	if (!skeleton)
		return errno ? errno : ENOMEM;
	skeleton->rodata->reader_pidns = pidns;
	int rc = samples__load(skeleton);
	if (rc) {
		samples__destroy(skeleton);
		return -rc;
	}
	*ret = skeleton;
	return 0;
}

static struct stall_error *load_skeleton(struct samples **ret)
{
	struct stall_bpf_log log;
	unsigned int pidns;
	struct stall_error *err = stall_bpf_pid_namespace(&pidns);

	if (err)
		return err;
	stall_bpf_log_begin(&log);
	int rc = load(pidns, ret);
	stall_bpf_log_end(&log);
	return rc ? stall_bpf_load_error(rc, "the filter of samples", log.text) : NULL;
}

struct stall_error *stall_bpf_samples_create(struct stall_bpf_samples **ret)
{
	struct stall_bpf_samples *samples = calloc(1, sizeof(*samples));

	if (!samples)
		return &stall_enomem;
	struct stall_error *err = load_skeleton(&samples->skeleton);
	if (err) {
		stall_bpf_samples_destroy(samples);
		return err;
	}
	*ret = samples;
	return NULL;
}

struct stall_error *stall_bpf_samples_choose(struct stall_bpf_samples *samples, const pid_t *tgids,
					     size_t count)
{
	return stall_pid_set_fill(&samples->tgids, bpf_map__fd(samples->skeleton->maps.sampled),
				  tgids, count);
}

void stall_bpf_samples_destroy(struct stall_bpf_samples *samples)
{
	if (!samples)
		return;
	samples__destroy(samples->skeleton);
	stall_pid_set_deinit(&samples->tgids);
	free(samples);
}

int stall_bpf_samples_fd(const struct stall_bpf_samples *samples)
{
	return bpf_program__fd(samples->skeleton->progs.stall_samples);
}

// SPDX-License-Identifier: Apache-2.0
#include "ebpf/samples_loader.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>

#include "ebpf/bpf_error.h"
#include "samples.skel.h"

struct stall_bpf_samples {
	struct samples *skeleton;
	pid_t *tgids;
	size_t tgid_count;
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

static void forget_chosen(struct stall_bpf_samples *samples, int map)
{
	for (size_t i = 0; i < samples->tgid_count; i++)
		bpf_map_delete_elem(map, &samples->tgids[i]);
	samples->tgid_count = 0;
}

struct stall_error *stall_bpf_samples_choose(struct stall_bpf_samples *samples, const pid_t *tgids,
					     size_t count)
{
	int map = bpf_map__fd(samples->skeleton->maps.sampled);
	unsigned char one = 1;

	forget_chosen(samples, map);
	pid_t *copy = reallocarray(samples->tgids, count + 1, sizeof(*copy));
	if (!copy)
		return &stall_enomem;
	samples->tgids = copy;
	for (size_t i = 0; i < count; i++) {
		if (bpf_map_update_elem(map, &tgids[i], &one, BPF_ANY) < 0)
			return stall_error_os(errno, "cannot choose process %d in the BPF map",
					      tgids[i]);
		samples->tgids[samples->tgid_count++] = tgids[i];
	}
	return NULL;
}

void stall_bpf_samples_destroy(struct stall_bpf_samples *samples)
{
	if (!samples)
		return;
	samples__destroy(samples->skeleton);
	free(samples->tgids);
	free(samples);
}

int stall_bpf_samples_fd(const struct stall_bpf_samples *samples)
{
	return bpf_program__fd(samples->skeleton->progs.stall_samples);
}

// SPDX-License-Identifier: Apache-2.0
// Stands in for snap_bpf.c where the program was built without BPF.
#include "snapshot/backend.h"
#include "snapshot/sampler.h"

static struct stall_error *nobpf_check(const struct stall_snapshot_options *options)
{
	(void)options;
	return stall_error_create(
		STALL_ERROR_UNSUPPORTED,
		"backend bpf: this stallscope-probe was built without BPF; build it "
		"with -Dbpf=enabled where clang, bpftool and libbpf are installed");
}

static struct stall_error *nobpf_open(const struct stall_snapshot_options *options, void **ret)
{
	(void)ret;
	return nobpf_check(options);
}

static struct stall_error *nobpf_capture(void *state, struct stall_snapshot *snapshot,
					 const struct stall_snapshot_options *options)
{
	(void)state;
	(void)snapshot;
	return nobpf_check(options);
}

static void nobpf_close(void *state)
{
	(void)state;
}

struct stall_error *stall_sampler_create(size_t max_stack, struct stall_sampler **ret)
{
	(void)max_stack;
	(void)ret;
	return nobpf_check(NULL);
}

struct stall_error *stall_sampler_start(struct stall_sampler *sampler, const pid_t *tgids,
					size_t count)
{
	(void)sampler;
	(void)tgids;
	(void)count;
	return nobpf_check(NULL);
}

void stall_sampler_stop(struct stall_sampler *sampler)
{
	(void)sampler;
}

void stall_sampler_destroy(struct stall_sampler *sampler)
{
	(void)sampler;
}

struct stall_error *stall_sampler_take(struct stall_sampler *sampler,
				       struct stall_snapshot *snapshot)
{
	(void)sampler;
	(void)snapshot;
	return nobpf_check(NULL);
}

const struct stall_backend stall_backend_bpf = {
	.name = "bpf",
	.feature = "bpf-iterator",
	.check = nobpf_check,
	.open = nobpf_open,
	.capture = nobpf_capture,
	.close = nobpf_close,
};

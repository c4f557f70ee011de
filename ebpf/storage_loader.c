// SPDX-License-Identifier: Apache-2.0
#include "ebpf/storage_loader.h"

#include <bpf/btf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "ebpf/bpf_error.h"
#include "ebpf/waits_state.h"

#define UNKNOWN "which pages become dirty is not known"

// Both get a page or folio, and its address_space.
static const char *const tracepoints[] = {"writeback_dirty_folio", "writeback_dirty_page"};

static const char *find_tracepoint(const struct btf *btf)
{
	char type[64];

	for (size_t i = 0; i < sizeof(tracepoints) / sizeof(tracepoints[0]); i++) {
		snprintf(type, sizeof(type), "btf_trace_%s", tracepoints[i]);
		if (btf__find_by_name_kind(btf, type, BTF_KIND_TYPEDEF) > 0)
			return tracepoints[i];
	}
	return NULL;
}

void stall_storage_prepare(struct stall_bpf_waits *waits, const struct btf *btf)
{
	struct waits *skeleton = waits->skeleton;
	const char *tracepoint = waits->options.storage ? find_tracepoint(btf) : NULL;

	skeleton->rodata->counts_storage = waits->options.storage;
	bpf_map__set_max_entries(skeleton->maps.storage,
				 waits->options.storage ? waits->stat_count : 1);
	bpf_program__set_autoload(skeleton->progs.stall_dirty, tracepoint);
	waits->dirty_why_not = NULL;
	if (!tracepoint)
		waits->dirty_why_not =
			"this kernel has no tracepoint writeback_dirty_folio: " UNKNOWN;
	else
		bpf_program__set_attach_target(skeleton->progs.stall_dirty, 0, tracepoint);
}

static size_t map_size(const struct stall_bpf_waits *waits)
{
	return waits->stat_count * sizeof(struct stall_storage_stat);
}

struct stall_error *stall_storage_map(struct stall_bpf_waits *waits)
{
	struct bpf_map *map = waits->skeleton->maps.storage;

	if (!waits->options.storage)
		return NULL;
	void *data = mmap(NULL, map_size(waits), PROT_READ, MAP_SHARED, bpf_map__fd(map), 0);
	if (data == MAP_FAILED)
		return stall_error_os(errno, "cannot map the BPF map %s of %zu bytes",
				      bpf_map__name(map), map_size(waits));
	waits->storage = data;
	return NULL;
}

void stall_storage_unmap(struct stall_bpf_waits *waits)
{
	if (waits->storage)
		munmap((void *)waits->storage, map_size(waits));
}

static void try_attach(struct stall_bpf_waits *waits)
{
	struct bpf_program *program = waits->skeleton->progs.stall_dirty;
	struct stall_bpf_log log;

	stall_bpf_log_begin(&log);
	waits->skeleton->links.stall_dirty = bpf_program__attach(program);
	stall_bpf_log_end(&log);
	if (!waits->skeleton->links.stall_dirty)
		waits->dirty_why_not = "the kernel refuses a program at the tracepoint "
				       "writeback_dirty_folio: " UNKNOWN;
}

void stall_storage_attach(struct stall_bpf_waits *waits)
{
	if (waits->options.storage && !waits->dirty_why_not)
		try_attach(waits);
}

void stall_storage_detach(struct stall_bpf_waits *waits)
{
	bpf_link__destroy(waits->skeleton->links.stall_dirty);
	waits->skeleton->links.stall_dirty = NULL;
}

const char *stall_bpf_waits_dirty_why_not(const struct stall_bpf_waits *waits)
{
	return waits->dirty_why_not;
}

// The high half before the low one and after it: both are of one moment.
static void copy_wide(const volatile __u64 from[2], __u64 to[2])
{
	do {
		to[1] = from[1];
		to[0] = from[0];
	} while (to[1] != from[1]);
}

void stall_bpf_waits_storage(const struct stall_bpf_waits *waits, size_t index,
			     struct stall_storage_stat *ret)
{
	const volatile struct stall_storage_stat *found = &waits->storage[index];

	*ret = *(const struct stall_storage_stat *)found;
	copy_wide(found->sum_nn, ret->sum_nn);
	copy_wide(found->sum_nt, ret->sum_nt);
	copy_wide(found->sum_tt, ret->sum_tt);
}

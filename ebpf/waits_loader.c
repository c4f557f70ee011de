// SPDX-License-Identifier: Apache-2.0
#include "ebpf/waits_loader.h"
#include "base/privileges.h"
#include "ebpf/async_loader.h"
#include "ebpf/uprobes_loader.h"
#include "ebpf/waits_attach.h"
#include "ebpf/waits_read.h"
#include "ebpf/waits_state.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "ebpf/bpf_error.h"
#include "ebpf/ignored_loader.h"
#include "ebpf/passes_loader.h"
#include "ebpf/storage_loader.h"
#include "ebpf/task_iterator.h"
#include "ebpf/waits_slots.h"

#define MAX_STACK 32768
#define MAX_COUNT (1U << 20) // of threads and of keys

void stall_bpf_waits_options_init(struct stall_bpf_waits_options *options)
{
	*options = (struct stall_bpf_waits_options){
		.kinds = (1U << STALL_WAIT_KINDS) - 1,
		.max_threads = 16384,
		.max_keys = 16384,
		.ring_bytes = 8 << 20,
		.stack_bytes = 32768,
		.records_per_second = 1000,
	};
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		options->threshold_ns[i] = 100 * 1000000;
}

static struct stall_error *check_options(const struct stall_bpf_waits_options *options)
{
	uint32_t ring = options->ring_bytes;

	if (!options->kinds || options->kinds >> STALL_WAIT_KINDS)
		return stall_error_create(STALL_ERROR_USAGE, "no such kinds of waits: %#x",
					  options->kinds);
	if (!options->max_threads || options->max_threads > MAX_COUNT || !options->max_keys ||
	    options->max_keys > MAX_COUNT)
		return stall_error_create(STALL_ERROR_USAGE,
					  "threads and keys to watch must be 1 to %u", MAX_COUNT);
	if (ring < 4096 || (ring & (ring - 1)))
		return stall_error_create(STALL_ERROR_USAGE,
					  "the ring buffer must be a power of two of at least 4096 "
					  "bytes, not %u",
					  ring);
	if (options->stack_bytes > MAX_STACK || !options->records_per_second)
		return stall_error_create(STALL_ERROR_USAGE,
					  "stack copies must be at most %u bytes, and more than 0 "
					  "a second",
					  MAX_STACK);
	return NULL;
}

static struct stall_error *map_array(struct bpf_map *map, void **ret)
{
	size_t size = (size_t)bpf_map__value_size(map) * bpf_map__max_entries(map);
	void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);

	if (data == MAP_FAILED)
		return stall_error_os(errno, "cannot map the BPF map %s of %zu bytes",
				      bpf_map__name(map), size);
	// Not inherited by a worker that is started later: it parses hostile files.
	madvise(data, size, MADV_DONTFORK);
	*ret = data;
	return NULL;
}

static void unmap_array(struct bpf_map *map, void *data)
{
	if (data)
		munmap(data, (size_t)bpf_map__value_size(map) * bpf_map__max_entries(map));
}

// The stats behind the table, one per kind.
static void init_last_stats(struct stall_bpf_waits *waits)
{
	for (int kind = 0; kind < STALL_WAIT_KINDS; kind++) {
		struct stall_wait_stat *stat = &waits->stats[waits->stat_mask + 1 + kind];

		stat->key.kind = kind;
		stat->tag = stall_wait_tag(&stat->key);
		stat->announced = 1;
		stat->used = 1;
		stat->listed = 1;
		waits->made_stats[waits->skeleton->bss->made_count++] = waits->stat_mask + 2 + kind;
	}
}

static struct stall_error *map_ring(struct stall_bpf_waits *waits, const struct bpf_map *map,
				    int (*take)(void *waits, void *data, size_t size),
				    struct ring_buffer **ret)
{
	struct ring_buffer *ring = ring_buffer__new(bpf_map__fd(map), take, waits, NULL);
	struct epoll_event event = {.events = EPOLLIN};

	if (!ring)
		return stall_error_os(errno, "cannot map the BPF ring buffer");
	*ret = ring;
	if (epoll_ctl(waits->epoll, EPOLL_CTL_ADD, ring_buffer__epoll_fd(ring), &event) < 0)
		return stall_error_os(errno, "epoll_ctl");
	return NULL;
}

static struct stall_error *map_rings(struct stall_bpf_waits *waits)
{
	waits->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (waits->epoll < 0)
		return stall_error_os(errno, "epoll_create1");
	struct stall_error *err = map_ring(waits, waits->skeleton->maps.alarms,
					   stall_bpf_waits_take_alarm, &waits->alarms);
	return err ? err
		   : map_ring(waits, waits->skeleton->maps.records, stall_bpf_waits_take_record,
			      &waits->ring);
}

static struct stall_error *map_all(struct stall_bpf_waits *waits)
{
	struct waits *skeleton = waits->skeleton;
	struct stall_error *err = map_array(skeleton->maps.slots, (void **)&waits->slots);

	if (!err)
		err = map_array(skeleton->maps.stats, (void **)&waits->stats);
	if (!err)
		err = map_array(skeleton->maps.threads, (void **)&waits->threads);
	if (!err)
		err = map_array(skeleton->maps.passes, (void **)&waits->passes);
	if (!err)
		err = map_array(skeleton->maps.made_stats, (void **)&waits->made_stats);
	if (!err)
		err = stall_storage_map(waits);
	if (err)
		return err;
	init_last_stats(waits);
	return map_rings(waits);
}

static void set_thresholds(struct stall_bpf_waits *waits)
{
	static const uint64_t longest = 200000000, shortest = 1000000;
	struct waits__bss *bss = waits->skeleton->bss;
	uint64_t least = longest;

	for (int kind = 0; kind < STALL_WAIT_KINDS; kind++) {
		uint64_t ns = waits->options.threshold_ns[kind];

		bss->thresholds[kind] = ns;
		if ((waits->options.kinds >> kind & 1) && ns < least)
			least = ns;
	}
	bss->scan_period_ns = (least < shortest ? shortest : least) / 2;
}

void stall_bpf_waits_set_threshold(struct stall_bpf_waits *waits, enum stall_wait_kind kind,
				   uint64_t ns)
{
	waits->options.threshold_ns[kind] = ns;
	set_thresholds(waits);
}

struct stall_error *stall_bpf_waits_create(const struct stall_bpf_waits_options *options,
					   struct stall_bpf_waits **ret)
{
	struct stall_error *err = check_options(options);

	if (!err)
		err = stall_yama_refuses_all(); // no mappings, no stacks: waits without names
	if (err)
		return err;
	struct stall_bpf_waits *waits = calloc(1, sizeof(*waits));
	if (!waits)
		return &stall_enomem;
	waits->options = *options;
	waits->epoll = -1;
	waits->call_added_ns = -1;
	waits->grace_period = STALL_GRACE_PERIOD_NONE;
	err = stall_bpf_waits_load(waits);
	if (!err)
		err = stall_grace_period_init(&waits->grace_period);
	if (!err)
		err = map_all(waits);
	if (!err) {
		set_thresholds(waits);
		err = stall_waits_start(waits);
	}
	if (!err && !options->at_rest)
		err = stall_bpf_waits_attach(waits);
	if (err) {
		stall_bpf_waits_destroy(waits);
		return err;
	}
	*ret = waits;
	return NULL;
}

void stall_bpf_waits_destroy(struct stall_bpf_waits *waits)
{
	if (!waits)
		return;
	stall_uprobes_deinit(&waits->uprobes);
	ring_buffer__free(waits->ring);
	ring_buffer__free(waits->alarms);
	if (waits->epoll >= 0)
		close(waits->epoll);
	if (waits->skeleton) {
		unmap_array(waits->skeleton->maps.slots, waits->slots);
		unmap_array(waits->skeleton->maps.stats, waits->stats);
		unmap_array(waits->skeleton->maps.threads, waits->threads);
		unmap_array(waits->skeleton->maps.passes, waits->passes);
		unmap_array(waits->skeleton->maps.made_stats, waits->made_stats);
		stall_storage_unmap(waits);
	}
	stall_passes_deinit(waits);
	waits__destroy(waits->skeleton);
	stall_grace_period_deinit(&waits->grace_period);
	free(waits->targets);
	free(waits);
}

const struct stall_wait_program *stall_bpf_waits_programs(const struct stall_bpf_waits *waits,
							  size_t *ret_count)
{
	*ret_count = waits->program_count;
	return waits->programs;
}

bool stall_bpf_waits_has_timer(const struct stall_bpf_waits *waits)
{
	return waits->has_timer;
}

/* Targets. */

// Where the kernel cannot limit the iterator, or ended it early, it walks over all tasks.
static struct stall_error *adopt(struct stall_bpf_waits *waits, pid_t pid)
{
	struct bpf_program *program = waits->skeleton->progs.stall_adopt;
	struct waits__bss *bss = waits->skeleton->bss;

	bss->adopted_pid = pid;
	bss->adopted_tgid = 0;
	bss->adopted_last = 0;
	// At rest only a second pass shows that a thread waits.
	waits->skeleton->data->adopts_waits = waits->attached && !waits->options.storage;
	if (!waits->no_limit) {
		struct stall_error *err = stall_task_iterator_walk(program, pid);

		// ESRCH: there is no such process.
		if (err && err->errnum != EINVAL && err->errnum != ENOENT)
			return err;
		waits->no_limit = err != NULL;
		stall_error_destroy(err);
	}
	if (*(volatile __u32 *)&bss->adopted_last)
		return NULL;
	return stall_task_iterator_walk(program, 0);
}

static void set_target_filter(struct stall_bpf_waits *waits)
{
	struct waits__bss *bss = waits->skeleton->bss;

	bss->target_count = waits->target_count;
	bss->only_tgid = waits->target_count == 1 ? waits->targets[0].tgid : 0;
}

struct stall_error *stall_bpf_waits_add(struct stall_bpf_waits *waits, pid_t pid)
{
	if (!stall_array_resize(&waits->targets, waits->target_count + 1))
		return &stall_enomem;
	stall_bpf_waits_remove(waits, pid); // of a process that had this number before
	struct stall_error *err = adopt(waits, pid);
	if (err)
		return err;
	uint32_t tgid = *(volatile __u32 *)&waits->skeleton->bss->adopted_tgid;
	if (!tgid)
		return stall_error_create(STALL_ERROR_NO_PROCESS,
					  "no process %d in this pid namespace", pid);
	waits->targets[waits->target_count++] = (struct stall_waits_target){pid, tgid};
	set_target_filter(waits);
	return NULL;
}

void stall_bpf_waits_remove(struct stall_bpf_waits *waits, pid_t pid)
{
	size_t i = 0;

	while (i < waits->target_count && waits->targets[i].pid != pid)
		i++;
	if (i == waits->target_count)
		return;
	bpf_map_delete_elem(bpf_map__fd(waits->skeleton->maps.targets), &waits->targets[i].tgid);
	waits->targets[i] = waits->targets[--waits->target_count];
	set_target_filter(waits);
	stall_ignored_remove(waits, pid);
	// From here on no thread gets a slot.
	if (!stall_waits_have_programs_ended(waits))
		return;
	stall_waits_forget_threads(waits, pid);
	// Nor does a thread find its own slot.
	if (!stall_waits_have_programs_ended(waits))
		return;
	stall_waits_free_slots(waits, pid);
	stall_passes_remove(waits, pid);
	stall_async_forget(waits->skeleton, pid);
}

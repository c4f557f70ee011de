// SPDX-License-Identifier: Apache-2.0
#include "snapshot/sampler.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "ebpf/samples_loader.h"
#include "snapshot/perf_record.h"
#include "snapshot/thread_index.h"

#define PAGE ((size_t)4096)
#define MAX_RECORD ((size_t)64 * 1024)
// Not a whole number of milliseconds: what a server does every millisecond would be hit always, or
// never.
#define PERIOD_NS UINT64_C(997331)
// Of the innermost frames: 25 frames of a server take 4 to 10 KiB, and copying delays the thread.
#define MAX_STACK ((size_t)32 * 1024)
#define RING_SIZE ((size_t)2 << 20)   // 60 samples and more, twice what comes between two captures
#define RINGS_SIZE ((size_t)64 << 20) // of all CPUs
#define MIN_RING ((size_t)256 << 10)

// One CPU.
struct ring {
	int fd;
	uint8_t *map; // a page of the kernel's, then the records
};

struct stall_sampler {
	struct stall_bpf_samples *filter;
	struct ring *rings;
	size_t count;
	size_t ring_size; // a power of two
	uint64_t since_ns;
	size_t max_stack;
	uint8_t record[MAX_RECORD]; // one that is cut by the end of the ring
};

void stall_sampler_stop(struct stall_sampler *sampler)
{
	for (size_t i = 0; i < sampler->count; i++) {
		if (sampler->rings[i].map)
			munmap(sampler->rings[i].map, PAGE + sampler->ring_size);
		if (sampler->rings[i].fd >= 0)
			close(sampler->rings[i].fd);
	}
	free(sampler->rings);
	sampler->rings = NULL;
	sampler->count = 0;
}

void stall_sampler_destroy(struct stall_sampler *sampler)
{
	if (!sampler)
		return;
	stall_sampler_stop(sampler);
	stall_bpf_samples_destroy(sampler->filter);
	free(sampler);
}

// 0 or an errno.
static int open_ring(struct stall_sampler *sampler, struct ring *ring, int cpu)
{
	struct perf_event_attr attr;

	stall_perf_attr(PERF_COUNT_SW_CPU_CLOCK, PERIOD_NS, sampler->max_stack, &attr);
	attr.exclude_idle = 1;
	attr.watermark = 1; // nobody waits for it: it is read with the next capture
	attr.wakeup_watermark = UINT32_MAX;
	ring->fd = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
	if (ring->fd < 0)
		return errno;
	void *map = mmap(NULL, PAGE + sampler->ring_size, PROT_READ | PROT_WRITE, MAP_SHARED,
			 ring->fd, 0);
	if (map == MAP_FAILED)
		return errno;
	ring->map = map;
	if (ioctl(ring->fd, PERF_EVENT_IOC_SET_BPF, stall_bpf_samples_fd(sampler->filter)) < 0 ||
	    ioctl(ring->fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
		return errno;
	return 0;
}

static size_t size_of_ring(size_t cpus)
{
	size_t size = RING_SIZE;

	while (size > MIN_RING && size * cpus > RINGS_SIZE)
		size /= 2;
	return size;
}

static struct stall_error *open_rings(struct stall_sampler *sampler, size_t cpus)
{
	sampler->ring_size = size_of_ring(cpus);
	sampler->rings = calloc(cpus, sizeof(*sampler->rings));
	if (!sampler->rings)
		return &stall_enomem;
	for (size_t i = 0; i < cpus; i++) {
		struct ring *ring = &sampler->rings[sampler->count];

		ring->fd = -1;
		sampler->count++;
		int rc = open_ring(sampler, ring, (int)i);
		if (rc == ENODEV || rc == ENXIO) { // the CPU is offline
			if (ring->fd >= 0)
				close(ring->fd);
			sampler->count--;
			continue;
		}
		if (rc)
			return stall_error_os(
				rc, "cannot sample what runs by perf_event_open (it takes "
				    "CAP_PERFMON, and on Debian kernel.perf_event_paranoid "
				    "of 2 at most)");
	}
	return NULL;
}

struct stall_error *stall_sampler_create(size_t max_stack, struct stall_sampler **ret)
{
	struct stall_sampler *sampler = calloc(1, sizeof(*sampler));

	if (!sampler)
		return &stall_enomem;
	sampler->max_stack = max_stack < MAX_STACK ? max_stack : MAX_STACK;
	struct stall_error *err = stall_bpf_samples_create(&sampler->filter);
	if (err) {
		stall_sampler_destroy(sampler);
		return err;
	}
	*ret = sampler;
	return NULL;
}

struct stall_error *stall_sampler_start(struct stall_sampler *sampler, const pid_t *tgids,
					size_t count)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);

	stall_sampler_stop(sampler);
	struct stall_error *err = stall_bpf_samples_choose(sampler->filter, tgids, count);
	if (!err)
		err = open_rings(sampler, cpus < 1 ? 1 : (size_t)cpus);
	if (err)
		stall_sampler_stop(sampler);
	sampler->since_ns = stall_clock_ns(CLOCK_MONOTONIC);
	return err;
}

// Where samples go.
struct taking {
	struct stall_snapshot *snapshot;
	struct stall_thread_index index;
	size_t first, capacity; // of the threads behind the captured ones
};

static struct stall_error *make_room(struct taking *taking)
{
	struct stall_snapshot *snapshot = taking->snapshot;
	size_t used = taking->first + snapshot->samples.count;

	if (used < taking->capacity)
		return NULL;
	size_t capacity = used + 64;
	if (!stall_array_resize(&snapshot->threads, capacity))
		return &stall_enomem;
	taking->capacity = capacity;
	return NULL;
}

static struct stall_error *take_sample(struct taking *taking, const uint8_t *at, const uint8_t *end)
{
	struct stall_snapshot *snapshot = taking->snapshot;
	uint32_t ids[2], process;

	if (!stall_perf_ids(at, end, ids))
		return NULL;
	process = stall_thread_index_process(&taking->index, (pid_t)ids[0]);
	if (process == STALL_NO_PROCESS)
		return NULL;
	struct stall_error *err = make_room(taking);
	if (err)
		return err;
	struct stall_thread *sample = &snapshot->threads[taking->first + snapshot->samples.count];
	size_t known = stall_thread_index_find(&taking->index, (pid_t)ids[0], (pid_t)ids[1]);

	*sample = (struct stall_thread){
		.tid = (pid_t)ids[1],
		.process = process,
		.state = 'R',
		.on_cpu = true,
		.label = STALL_RUNNING,
	};
	if (known != STALL_NO_THREAD) {
		const struct stall_thread *thread = &snapshot->threads[known];

		memcpy(sample->comm, thread->comm, sizeof(sample->comm));
		sample->fs_base = thread->fs_base;
	}
	snapshot->samples.count += stall_perf_take(at, end, snapshot, sample);
	return NULL;
}

// Counts up: PERF_RECORD_LOST is { id, lost } behind its header.
static void count_lost(const uint8_t *at, const uint8_t *end, struct stall_samples *samples)
{
	uint64_t lost[2];

	if ((size_t)(end - at) < sizeof(lost))
		return;
	memcpy(lost, at, sizeof(lost));
	samples->lost += lost[1];
}

// The record at this position of the ring, in one piece.
static const uint8_t *get_record(struct stall_sampler *sampler, const uint8_t *data, uint64_t at,
				 size_t size)
{
	size_t start = at & (sampler->ring_size - 1), whole = sampler->ring_size - start;

	if (size <= whole)
		return data + start;
	memcpy(sampler->record, data + start, whole);
	memcpy(sampler->record + whole, data, size - whole);
	return sampler->record;
}

static struct stall_error *read_ring(struct stall_sampler *sampler, const struct ring *ring,
				     struct taking *taking)
{
	struct perf_event_mmap_page *page = (void *)ring->map;
	const uint8_t *data = ring->map + PAGE;
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), at = page->data_tail;
	struct stall_error *err = NULL;

	while (!err && head - at >= sizeof(struct perf_event_header)) {
		struct perf_event_header header;

		memcpy(&header, get_record(sampler, data, at, sizeof(header)), sizeof(header));
		if (header.size < sizeof(header) || header.size > head - at)
			break;
		const uint8_t *record = get_record(sampler, data, at, header.size);
		const uint8_t *body = record + sizeof(header), *end = record + header.size;
		if (header.type == PERF_RECORD_SAMPLE)
			err = take_sample(taking, body, end);
		else if (header.type == PERF_RECORD_LOST)
			count_lost(body, end, &taking->snapshot->samples);
		at += header.size;
	}
	__atomic_store_n(&page->data_tail, head, __ATOMIC_RELEASE);
	return err;
}

struct stall_error *stall_sampler_take(struct stall_sampler *sampler,
				       struct stall_snapshot *snapshot)
{
	size_t first = snapshot->thread_count + snapshot->release_count;
	struct taking taking = {.snapshot = snapshot, .first = first, .capacity = first};
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);
	struct stall_error *err = stall_thread_index_init(&taking.index, snapshot);

	if (err)
		return err;
	snapshot->samples = (struct stall_samples){
		.period_ns = PERIOD_NS,
		.window_ns = now - sampler->since_ns,
		.cpus = (unsigned int)sampler->count,
	};
	sampler->since_ns = now;
	for (size_t i = 0; !err && i < sampler->count; i++)
		err = read_ring(sampler, &sampler->rings[i], &taking);
	stall_thread_index_deinit(&taking.index);
	return err;
}

// SPDX-License-Identifier: Apache-2.0
#include "snapshot/sample.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "snapshot/perf_record.h"

#define PAGE 4096UL
#define DATA_SIZE (128 * 1024UL) // a record is at most 64 KiB, and the ring is never read twice
#define RING_SIZE (PAGE + DATA_SIZE)
#define PERIOD_NS                                                                                  \
	20000 // of CPU time; the kernel takes no less than 10000 (perf_swevent_start_hrtimer)

struct sampler {
	int fd;
	void *ring;
};

static void sampler_deinit(struct sampler *sampler)
{
	if (sampler->ring)
		munmap(sampler->ring, RING_SIZE);
	if (sampler->fd >= 0)
		close(sampler->fd);
	*sampler = (struct sampler){.fd = -1};
}

// 0 or an errno.
static int sampler_init(struct sampler *sampler, pid_t tid, size_t max_stack)
{
	struct perf_event_attr attr;

	stall_perf_attr(PERF_COUNT_SW_TASK_CLOCK, PERIOD_NS, max_stack, &attr);
	attr.wakeup_events = 1;

	*sampler = (struct sampler){.fd = -1};
	sampler->fd = (int)syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (sampler->fd < 0)
		return errno;
	void *ring = mmap(NULL, RING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, sampler->fd, 0);
	if (ring == MAP_FAILED) {
		int errnum = errno;
		sampler_deinit(sampler);
		return errnum;
	}
	sampler->ring = ring;
	return 0;
}

static bool read_ring(const struct sampler *sampler, const struct stall_snapshot *snapshot,
		      struct stall_thread *thread)
{
	const struct perf_event_mmap_page *page = sampler->ring;
	uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
	const uint8_t *data = (const uint8_t *)sampler->ring + PAGE;

	for (uint64_t at = 0; at + sizeof(struct perf_event_header) <= head && head <= DATA_SIZE;) {
		struct perf_event_header header;

		memcpy(&header, data + at, sizeof(header));
		if (header.size < sizeof(header) || header.size > head - at)
			return false;
		if (header.type == PERF_RECORD_SAMPLE) {
			return stall_perf_take(data + at + sizeof(header), data + at + header.size,
					       snapshot, thread);
		}
		at += header.size;
	}
	return false;
}

static int64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void wait_for_samples(const struct stall_snapshot *snapshot, struct stall_sample *samples,
			     struct sampler *samplers, size_t count, unsigned int timeout_us)
{
	struct pollfd fds[STALL_MAX_SAMPLED];
	int64_t deadline = now_us() + timeout_us;
	size_t open = 0;

	for (size_t i = 0; i < count; i++) {
		fds[i] = (struct pollfd){.fd = samplers[i].fd, .events = POLLIN};
		open += samplers[i].fd >= 0;
	}
	while (open > 0) {
		int64_t left = deadline - now_us();
		struct timespec timeout = {.tv_nsec = left * 1000};

		if (left <= 0 || ppoll(fds, count, &timeout, NULL) <= 0)
			return;
		for (size_t i = 0; i < count; i++) {
			if (!fds[i].revents)
				continue;
			// A wake-up without a record: the thread has ended.
			samples[i].taken = read_ring(&samplers[i], snapshot, samples[i].thread);
			fds[i].fd = -1;
			fds[i].revents = 0;
			open--;
		}
	}
}

struct stall_error *stall_sample_threads(const struct stall_snapshot *snapshot,
					 struct stall_sample *samples, size_t count,
					 size_t max_stack, unsigned int timeout_us)
{
	struct sampler samplers[STALL_MAX_SAMPLED];
	size_t open = 0;
	int refused = 0;

	if (count > STALL_MAX_SAMPLED)
		count = STALL_MAX_SAMPLED;
	for (size_t i = 0; i < count; i++) {
		int rc = sampler_init(&samplers[i], samples[i].thread->tid, max_stack);

		samples[i].taken = false;
		if (rc == 0)
			open++;
		else if (rc != ESRCH)
			refused = rc;
	}
	for (size_t i = 0; i < count; i++) {
		// One sample, then the event switches itself off.
		if (samplers[i].fd >= 0)
			ioctl(samplers[i].fd, PERF_EVENT_IOC_REFRESH, 1);
	}
	if (open)
		wait_for_samples(snapshot, samples, samplers, count, timeout_us);
	for (size_t i = 0; i < count; i++)
		sampler_deinit(&samplers[i]);
	if (!open && refused)
		return stall_error_os(refused,
				      "cannot sample threads that are on a CPU by "
				      "perf_event_open (it takes CAP_PERFMON, and on Debian "
				      "kernel.perf_event_paranoid of 2 at most)");
	return NULL;
}

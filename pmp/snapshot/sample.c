// SPDX-License-Identifier: Apache-2.0
#include "snapshot/sample.h"

#include <asm/perf_regs.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define DATA_SIZE (128 * 1024UL) // a record is at most 64 KiB, and the ring is never read twice
#define RING_SIZE (PAGE + DATA_SIZE)
#define PERIOD_NS                                                                                  \
	20000 // of CPU time; the kernel takes no less than 10000 (perf_swevent_start_hrtimer)

// Bits of asm/perf_regs.h with their DWARF numbers. The kernel writes them by ascending bit.
static const struct {
	int bit;
	int dwarf;
} sampled_regs[] = {
	{PERF_REG_X86_AX, 0},	{PERF_REG_X86_BX, 3},	{PERF_REG_X86_CX, 2},
	{PERF_REG_X86_DX, 1},	{PERF_REG_X86_SI, 4},	{PERF_REG_X86_DI, 5},
	{PERF_REG_X86_BP, 6},	{PERF_REG_X86_SP, 7},	{PERF_REG_X86_IP, 16},
	{PERF_REG_X86_R8, 8},	{PERF_REG_X86_R9, 9},	{PERF_REG_X86_R10, 10},
	{PERF_REG_X86_R11, 11}, {PERF_REG_X86_R12, 12}, {PERF_REG_X86_R13, 13},
	{PERF_REG_X86_R14, 14}, {PERF_REG_X86_R15, 15},
};
#define SAMPLED_REGS (sizeof(sampled_regs) / sizeof(sampled_regs[0]))

struct sampler {
	int fd;
	void *ring;
};

static uint64_t regs_mask(void)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < SAMPLED_REGS; i++)
		mask |= 1ULL << sampled_regs[i].bit;
	return mask;
}

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
	// sample_stack_user is below 64 KiB and a multiple of 8 (perf_copy_attr).
	size_t stack = max_stack < 65528 ? max_stack & ~7UL : 65528;
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_TASK_CLOCK,
		.sample_period = PERIOD_NS,
		.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_REGS_USER |
			       PERF_SAMPLE_STACK_USER,
		.sample_regs_user = regs_mask(),
		.sample_stack_user = stack,
		.sample_max_stack = STALL_KERNEL_FRAMES,
		.disabled = 1,
		.exclude_hv = 1,
		.exclude_callchain_user = 1,
		.wakeup_events = 1,
	};

	*sampler = (struct sampler){.fd = -1};
	sampler->fd = syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
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

// What is left of one record.
struct record {
	const uint8_t *at, *end;
};

static bool take(struct record *record, void *ret, size_t size)
{
	if ((size_t)(record->end - record->at) < size)
		return false;
	memcpy(ret, record->at, size);
	record->at += size;
	return true;
}

static bool take_callchain(struct record *record, struct stall_thread *thread)
{
	uint64_t count, address;
	bool kernel = false;

	thread->kernel_frame_count = 0;
	if (!take(record, &count, sizeof(count)))
		return false;
	for (uint64_t i = 0; i < count; i++) {
		if (!take(record, &address, sizeof(address)))
			return false;
		if (address >= PERF_CONTEXT_MAX)
			kernel = address == (uint64_t)PERF_CONTEXT_KERNEL;
		else if (kernel && thread->kernel_frame_count < STALL_KERNEL_FRAMES)
			thread->kernel_frames[thread->kernel_frame_count++] = address;
	}
	return true;
}

static bool take_regs(struct record *record, struct stall_thread *thread)
{
	uint64_t abi, value;

	if (!take(record, &abi, sizeof(abi)) || abi != PERF_SAMPLE_REGS_ABI_64)
		return false;
	thread->regs.valid = 0;
	for (size_t i = 0; i < SAMPLED_REGS; i++) {
		if (!take(record, &value, sizeof(value)))
			return false;
		thread->regs.value[sampled_regs[i].dwarf] = value;
		thread->regs.valid |= 1U << sampled_regs[i].dwarf;
	}
	return true;
}

static bool take_stack(struct record *record, struct stall_arena *arena,
		       const struct stall_maps *maps, struct stall_thread *thread)
{
	uint64_t size, used;
	const uint8_t *bytes;

	if (!take(record, &size, sizeof(size)) || size > (uint64_t)(record->end - record->at))
		return false;
	bytes = record->at;
	record->at += size;
	// What could be copied of `size`; the rest is filler.
	if (!size || !take(record, &used, sizeof(used)) || used > size)
		return false;
	// Neighbouring mappings may follow.
	uint64_t sp = thread->regs.value[STALL_REG_SP],
		 end = stall_stack_end(maps, sp, thread->fs_base);
	if (end > sp && end - sp < used)
		used = end - sp;
	thread->stack = stall_arena_alloc(arena, used);
	thread->stack_address = sp;
	thread->stack_size = thread->stack ? used : 0;
	if (thread->stack)
		memcpy(thread->stack, bytes, used);
	return true;
}

// The order of the parts: perf_event_open(2), PERF_RECORD_SAMPLE.
static bool take_sample(struct record *record, const struct stall_snapshot *snapshot,
			struct stall_thread *thread)
{
	uint32_t ids[2]; // pid, tid

	return take(record, ids, sizeof(ids)) && (pid_t)ids[1] == thread->tid &&
	       take_callchain(record, thread) && take_regs(record, thread) &&
	       take_stack(record, snapshot->arena, snapshot->processes[thread->process].maps,
			  thread);
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
			struct record record = {data + at + sizeof(header),
						data + at + header.size};
			struct stall_thread taken = *thread;

			if (!take_sample(&record, snapshot, &taken))
				return false;
			*thread = taken;
			return true;
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

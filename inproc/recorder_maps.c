// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_maps.h"

#include <fcntl.h>
#include <string.h>

#define PAUSE_NS 1000000000ULL
#define PAUSE_FACTOR 256 // times as long as a reading took: less than 0.4 % of a thread's time
#define READ_SIZE 4096	 // the kernel gives whole lines, at most a page of them
#define MIN_READ 512	 // one line of a long path may be cut: that is the last one then

static uint32_t is_reading;
static uint64_t next_ns;

// The path is the sixth field. Anonymous memory has none, and [heap] and similar have no code.
static bool is_kept_line(const char *line, const char *end)
{
	int spaces = 0;

	for (; line < end && spaces < 5; line++) {
		if (*line == ' ') {
			spaces++;
			while (line + 1 < end && line[1] == ' ')
				line++;
		}
	}
	if (line >= end)
		return false;
	return *line == '/' || (end - line >= 6 && !memcmp(line, "[stack", 6)) ||
	       (end - line >= 6 && !memcmp(line, "[vdso]", 6));
}

struct reading {
	struct recorder_ring *ring;
	struct stall_ring_maps *maps;
	uint64_t offset;	      // of the text
	uint32_t room, kept, pending; // bytes: whole lines that are kept, and what comes after them
};

// Of the pending bytes keeps the lines that are wanted, and moves the rest after them.
static void keep_lines(struct reading *reading)
{
	char *text = reading->maps->text, *at = text + reading->kept;
	char *end = at + reading->pending, *line_end;

	while ((line_end = memchr(at, '\n', end - at))) {
		size_t length = line_end + 1 - at;
		if (is_kept_line(at, line_end)) {
			recorder_copy(text + reading->kept, at, length); // downward: may overlap
			reading->kept += length;
		}
		at += length;
	}
	reading->pending = end - at;
	recorder_copy(text + reading->kept, at, reading->pending);
}

static int read_lines(struct reading *reading, int fd)
{
	for (;;) {
		uint32_t used = reading->kept + reading->pending;
		uint32_t room = reading->room - used;

		if (room > READ_SIZE)
			room = READ_SIZE;
		if (room < MIN_READ ||
		    !recorder_ring_has(reading->ring, reading->offset + used, room)) {
			reading->maps->truncated = 1;
			return 0;
		}
		long n = raw_call3(SYS_read, fd, reading->maps->text + used, room);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			return -n;
		reading->pending += n;
		keep_lines(reading);
	}
}

// The first thread may have ended before the others, and has no memory then.
static long open_maps(void)
{
	long fd = raw_call3(SYS_open, "/proc/thread-self/maps", O_RDONLY | O_CLOEXEC, 0);

	return fd >= 0 ? fd : raw_call3(SYS_open, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
}

// Into the one of the two that is not in use.
static int read_maps(struct recorder_ring *ring, uint64_t now)
{
	uint32_t other = !__atomic_load_n(&ring->header->maps, __ATOMIC_RELAXED);
	uint64_t offset = ring->layout.maps_offset + other * ring->layout.maps_stride;
	struct stall_ring_maps *maps = recorder_ring_at(ring, offset);
	struct reading reading = {
		.ring = ring,
		.maps = maps,
		.offset = offset + sizeof(*maps),
		.room = ring->layout.maps_stride - sizeof(*maps),
	};
	long fd = open_maps();

	if (fd < 0)
		return -fd;
	__atomic_store_n(&maps->read_ns, 0, __ATOMIC_RELAXED);
	recorder_write_barrier();
	maps->size = maps->truncated = 0;
	int errnum = read_lines(&reading, fd);
	raw_call1(SYS_close, fd);
	if (errnum)
		return errnum;
	maps->size = reading.kept;
	__atomic_store_n(&maps->read_ns, now, __ATOMIC_RELEASE);
	__atomic_store_n(&ring->header->maps, other, __ATOMIC_RELEASE);
	return 0;
}

void recorder_maps_refresh(struct recorder_ring *ring, uint64_t now)
{
	if (now < __atomic_load_n(&next_ns, __ATOMIC_RELAXED) ||
	    __atomic_exchange_n(&is_reading, 1, __ATOMIC_ACQUIRE))
		return;
	if (now >= next_ns) { // nobody has just done it
		int errnum = read_maps(ring, now);
		uint64_t pause = (recorder_now() - now) * PAUSE_FACTOR;

		__atomic_store_n(&ring->header->maps_failed, errnum, __ATOMIC_RELAXED);
		__atomic_store_n(&next_ns, now + (pause > PAUSE_NS ? pause : PAUSE_NS),
				 __ATOMIC_RELAXED);
	}
	__atomic_store_n(&is_reading, 0, __ATOMIC_RELEASE);
}

void recorder_maps_refresh_alone(struct recorder_ring *ring, uint64_t now)
{
	if (!__atomic_load_n(&recorder_state.has_threads, __ATOMIC_RELAXED))
		recorder_maps_refresh(ring, now);
}

void recorder_maps_forget(void)
{
	is_reading = 0;
	next_ns = 0;
}

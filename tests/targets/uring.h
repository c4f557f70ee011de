// SPDX-License-Identifier: Apache-2.0
// An io_uring, by raw system calls: its entries are submitted and waited for together.
#ifndef URING_H
#define URING_H

#include "target.h"

#include <linux/io_uring.h>
#include <sys/mman.h>

static struct {
	int fd;	  // -1: there are none here
	int file; // that is registered; -1: none
	unsigned *tail, *mask, *array;
	unsigned *ended_head, *ended_mask;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *ended;
} uring;

static inline void uring_init(void)
{
	struct io_uring_params params = {};

	uring.file = -1;
	uring.fd = (int)syscall(SYS_io_uring_setup, 8, &params);
	if (uring.fd < 0)
		return;
	size_t bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
	size_t ended_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	char *submissions = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
				 uring.fd, IORING_OFF_SQ_RING);
	char *ended = mmap(NULL, ended_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			   uring.fd, IORING_OFF_CQ_RING);
	uring.entries =
		mmap(NULL, params.sq_entries * sizeof(*uring.entries), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_POPULATE, uring.fd, IORING_OFF_SQES);
	if (submissions == MAP_FAILED || ended == MAP_FAILED || uring.entries == MAP_FAILED)
		target_die("mmap");
	uring.tail = (unsigned *)(submissions + params.sq_off.tail);
	uring.mask = (unsigned *)(submissions + params.sq_off.ring_mask);
	uring.array = (unsigned *)(submissions + params.sq_off.array);
	uring.ended_head = (unsigned *)(ended + params.cq_off.head);
	uring.ended_mask = (unsigned *)(ended + params.cq_off.ring_mask);
	uring.ended = (struct io_uring_cqe *)(ended + params.cq_off.cqes);
}

// Makes the entry use the file by its number among those that are registered.
static inline void uring_fix(struct io_uring_sqe *entry, int fd)
{
	if (uring.file != fd) {
		if (uring.file >= 0)
			syscall(SYS_io_uring_register, uring.fd, IORING_UNREGISTER_FILES, NULL, 0);
		if (syscall(SYS_io_uring_register, uring.fd, IORING_REGISTER_FILES, &fd, 1) < 0)
			target_die("io_uring_register");
		uring.file = fd;
	}
	entry->fd = 0;
	entry->flags = IOSQE_FIXED_FILE;
}

// Returns the result of the first that failed, or of the last.
static inline ssize_t uring_run(const struct io_uring_sqe *entries, unsigned count)
{
	ssize_t result = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned tail = *uring.tail, place = tail & *uring.mask;

		uring.entries[place] = entries[i];
		uring.array[place] = place;
		__atomic_store_n(uring.tail, tail + 1, __ATOMIC_RELEASE);
	}
	if (syscall(SYS_io_uring_enter, uring.fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0) <
	    0)
		target_die("io_uring_enter");
	for (unsigned i = 0; i < count; i++) {
		unsigned head = *uring.ended_head;

		if (result >= 0)
			result = uring.ended[head & *uring.ended_mask].res;
		__atomic_store_n(uring.ended_head, head + 1, __ATOMIC_RELEASE);
	}
	return result;
}

#endif

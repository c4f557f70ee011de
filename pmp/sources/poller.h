// SPDX-License-Identifier: Apache-2.0
// A thread of this program that polls all threads of some processes, and keeps which of them wait.
// It is a thread since unwinding and captures take long.
#ifndef STALL_POLLER_H
#define STALL_POLLER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "sources/poll_calls.h"
#include "sources/poll_process.h"
#include "sources/poll_stats.h"
#include "sources/resting.h"
#include "waits/wait_source.h"

#define STALL_POLL_SLOTS 16384
#define STALL_POLL_ENDS 4096  // that are not read yet
#define STALL_POLL_FILES 1024 // the same

// A wait in flight.
struct stall_poll_slot {
	uint32_t seq; // odd while its thread waits
	uint32_t stat;
	bool reported;
	struct stall_poll_process *process;
	struct stall_poll_thread *thread; // NULL: free
	struct stall_poll_call call;
	uint64_t start_ns;
	uint64_t found_ns; // by the second pass that saw it
};

// Everything is guarded by the lock.
struct stall_poller {
	pthread_mutex_t lock;
	pthread_cond_t changed; // there is something to do before the next pass
	pthread_t thread;
	bool started, over;
	int event; // eventfd: readable when there is something to hand on

	uint32_t kinds; // bit of each that is watched
	uint64_t threshold_ns[STALL_WAIT_KINDS];
	uint64_t fixed_ns; // between two passes; 0: as their cost allows
	struct stall_call calls[STALL_CALLS];
	struct stall_poll_reader reader;
	struct stall_poll_process **processes;
	size_t process_count, thread_count;
	struct stall_poll_stats *stats;
	struct stall_poll_slot *slots;
	size_t slot_high;
	uint32_t *free_slots;
	size_t free_count;
	struct stall_wait_record *ends;
	size_t end_count;
	struct stall_wait_file *files;
	size_t file_count;
	uint64_t lost[STALL_LOST_CAUSES];
	bool has_words; // that threads wait for, and whose roles are not known
	bool no_memory; // in the thread, which cannot return an error

	bool rests; // at times
	struct stall_resting resting;
	uint64_t next_ns;
	uint64_t interval_ns; // as it is now
	uint64_t cost_ns;     // of one pass over all threads, CPU time, smoothed
	uint64_t longest_ns;  // between two readings of a thread, since somebody has set it to 0
	size_t refused;	      // threads that could not be read
};

struct stall_error *stall_poller_create(const struct stall_wait_source_options *options,
					struct stall_poller **ret);
void stall_poller_destroy(struct stall_poller *poller); // NULL is fine

// These take the lock themselves.
struct stall_error *stall_poller_add(struct stall_poller *poller, pid_t pid);
void stall_poller_remove(struct stall_poller *poller, pid_t pid);
// Of all waits, also those in flight.
void stall_poller_set_threshold(struct stall_poller *poller, enum stall_wait_kind kind,
				uint64_t ns);
// Polls now, and returns when that is done.
void stall_poller_poll_now(struct stall_poller *poller);

static inline void stall_poller_lock(struct stall_poller *poller)
{
	pthread_mutex_lock(&poller->lock);
}

static inline void stall_poller_unlock(struct stall_poller *poller)
{
	pthread_mutex_unlock(&poller->lock);
}

// From here on the caller has the lock.

// The wait has lasted for its threshold for certain: it was seen so long.
bool stall_poll_slot_is_over(const struct stall_poller *poller, const struct stall_poll_slot *slot);
// It must be reported in flight.
bool stall_poll_slot_is_due(const struct stall_poller *poller, const struct stall_poll_slot *slot);
struct stall_wait_record stall_poll_slot_record(const struct stall_poller *poller,
						const struct stall_poll_slot *slot, uint32_t type,
						uint64_t now_ns);
// Whether its thread is still in that wait at this moment.
bool stall_poll_slot_is(struct stall_poller *poller, size_t index, uint32_t seq);
// The process is another program: what its threads waited for is nothing any more.
void stall_poller_forget_waits(struct stall_poller *poller, struct stall_poll_process *process);
// One pass over all threads.
void stall_poller_pass(struct stall_poller *poller);

#endif

// SPDX-License-Identifier: Apache-2.0
// A wait source: the wait programs (source_bpf.c), the rings of servers that have the in-process
// library (source_ring.c), or /proc (source_poll.c). Everything behind it is the same for all
// three.
#ifndef STALL_WAIT_SOURCE_H
#define STALL_WAIT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/error.h"
#include "ebpf/wait_handler.h"
#include "snapshot/snapshot.h"
#include "unwind/worker.h"

struct stall_wait_process;
struct stall_wait_item;

#define STALL_WAIT_MAX_STACK (64 * 1024) // copied of a waiter's stack; the worker reads on beyond

struct stall_wait_source_options {
	const char *backend; // "bpf", "inproc" or "poll"; any other means the best that works
	const char *ring;    // inproc: the ring, or a folder to search; NULL: searched for
	uint32_t kinds;	     // bit of each enum stall_wait_kind to watch
	uint64_t threshold_ns[STALL_WAIT_KINDS]; // can be changed later
	uint32_t asked;		   // bit of each whose threshold was requested: a ring has its own
	bool uprobes;		   // in the server's own wait functions, where it has symbols
	bool no_timer;		   // behave as on a kernel without BPF timers
	uint64_t poll_interval_ns; // poll: between two passes; 0: as its cost allows
	bool force;		   // where the kernel is known to crash
	bool at_rest;		   // cost the processes nothing until a wait is long
	bool no_attach;		   // behave as where the kernel refuses to attach the programs
	size_t threads;		   // of the processes, when the source is made
};

// A wait in flight.
struct stall_wait_now {
	struct stall_wait_key key;
	uint64_t start_ns;
	uint32_t seq;
	bool reported; // as one over its threshold
	uint32_t operation;
	uint64_t value;
};

// Of a source that polls.
struct stall_wait_sampling {
	uint64_t interval_ns; // between two passes, as it is now
	uint64_t longest_ns;  // since the last query: the precision of lengths
	uint64_t worst_ns;    // the longest since the start
};

// Of a source that rests: until a wait is long, it only reads what the threads do, from time to time.
struct stall_wait_rest {
	bool resting;	      // now
	uint64_t interval_ns; // between two passes, as it is now
	uint64_t threads;     // in the latest pass
	uint64_t arms;	      // how often it has stopped resting since the start
	uint64_t refused;     // how often it could not
	uint64_t alerts;      // how often a wait was long after a second without; in no line
	const char *why;      // why it could not the last time; NULL: it could
};

#define STALL_SAMPLE_FRAMES 8
#define STALL_CHANNEL 32

// What a thread does at one moment.
struct stall_thread_sample {
	pid_t tgid, tid;
	char state;   // as in /proc; R: on a CPU, or waits for one
	int32_t call; // the number of its system call; -1: none, or not known
	// Of a system call that is a wait (no id where it cannot be read); else its kind is
	// STALL_WAIT_KINDS.
	struct stall_wait_key key;
	// Where the kernel sleeps: by the addresses of its frames, or by the name of one.
	uint32_t frame_count;
	uint64_t frames[STALL_SAMPLE_FRAMES]; // innermost first
	char channel[STALL_CHANNEL];	      // where there are no frames; "": not known
};
typedef void (*stall_sample_fn)(void *arg, const struct stall_thread_sample *sample);

struct stall_wait_number {
	const char *name;
	uint64_t count;
};

// Calls of a function of the server that has a uprobe.
struct stall_wait_hits {
	const char *name;
	uint64_t count;
	bool event; // struct stall_server_function
};

// Waits are found by slots, as many as threads that have waited, and counted in stats, as many as
// locks and files (waits.h). Both are known by their indexes, and are read in copies.
struct stall_wait_source_calls {
	const char *name; // of the backend
	bool has_objects; // futex words are known by the pthread objects that they are in
	void (*destroy)(void *state);

	// A snapshot without threads of a process (a pid in our pid namespace): held, with its mappings.
	struct stall_error *(*snapshot)(void *state, struct stall_arena *arena, pid_t pid,
					struct stall_snapshot *previous,
					struct stall_snapshot **ret);
	// Begins to watch a process whose snapshot was made.
	struct stall_error *(*add)(void *state, pid_t pid);
	void (*remove)(void *state, pid_t pid);
	// The process executes this program, now or from now on: sets uprobes in its functions.
	struct stall_error *(*probe_server)(void *state, struct stall_worker *worker,
					    const struct stall_snapshot *snapshot);

	// Ignores a thread of a process until it ends, or heeds it again. `tid`: its number in its own
	// pid namespace. STALL_ERROR_NO_PROCESS: there is no thread to ignore.
	struct stall_error *(*ignore)(void *state, pid_t pid, pid_t tid, bool on);

	// Of waits that begin from now on.
	struct stall_error *(*set_threshold)(void *state, enum stall_wait_kind kind, uint64_t ns);
	// That of a process; pid 0: the lowest of all.
	uint64_t (*threshold)(void *state, pid_t pid, enum stall_wait_kind kind);

	// Readable when there are records; -1: it is only polled.
	int (*fd)(void *state);
	// When to poll anyway; -1: never.
	int (*timeout_ms)(void *state);
	const char *(*in_flight_by)(void *state); // as in stallscope.waits/1
	// Does periodic work that is due. *ret_changed: programs() returns something else now.
	struct stall_error *(*poll)(void *state, uint64_t now_ns, bool *ret_changed);
	// Delivers all available records, at most `max`.
	struct stall_error *(*consume)(void *state, const struct stall_wait_handler *handler,
				       size_t max);

	size_t (*slot_limit)(void *state); // no slot has this index or a larger one, for now
	size_t (*slot_count)(void *state); // those from this one on are not in use
	bool (*read_slot)(void *state, size_t slot, struct stall_wait_now *ret); // false: no wait
	bool (*slot_is)(void *state, size_t slot, uint32_t seq); // still in this very wait
	// Sets stack, words and `exact` of these waits in flight of one process.
	struct stall_error *(*copy_stacks)(void *state, struct stall_arena *arena,
					   const struct stall_wait_process *process,
					   struct stall_wait_item *const *items, size_t count);
	// The bytes around a word that threads wait for. False: they cannot be read (any more).
	bool (*read_word)(void *state, const struct stall_wait_process *process,
			  const struct stall_wait_key *key, struct stall_futex *ret);

	size_t (*stat_count)(void *state);
	bool (*read_stat)(void *state, size_t stat, struct stall_wait_stat *ret); // false: free
	uint64_t (*take_max)(void *state, size_t stat); // the longest wait since the last call
	// Frees a stat that nothing has used for a while. False where it is in use after all, and at
	// the first call, after which no new wait finds it: call again after 100 ms or more. Then
	// its last values are in *ret.
	bool (*retire)(void *state, size_t stat, struct stall_wait_stat *ret);
	// Sets the role of a futex word, for all waits on it from now on.
	void (*set_role)(void *state, const struct stall_wait_key *key, enum stall_wait_role role);

	// Finds a file that no record has named. False: not known.
	bool (*find_file)(void *state, const struct stall_wait_key *key,
			  struct stall_wait_file *ret);

	// Since the start, by cause.
	void (*lost)(void *state, uint64_t ret[STALL_LOST_CAUSES]);
	// NULL: not needed. The next consume() delivers the present state.
	void (*hurry)(void *state);
	// NULL, or false: it sees each wait.
	bool (*sampling)(void *state, struct stall_wait_sampling *ret);
	// NULL, or false: it never rests.
	bool (*rest)(void *state, struct stall_wait_rest *ret);
	// NULL, or negative: nothing. What it adds to each system call of the host now.
	int64_t (*call_added_ns)(void *state);
	// NULL: not possible. Reports what each thread of all processes does now.
	struct stall_error *(*sample)(void *state, stall_sample_fn take, void *arg);
	// NULL: whenever it is wanted. When to take a sample that is wanted at this time: instead of
	// a pass that the source makes anyway, as soon as its budget allows.
	uint64_t (*sample_due_ns)(void *state, uint64_t wanted_ns);
	// All that are or could be attached; free *ret.
	struct stall_error *(*programs)(void *state, struct stall_wait_program **ret,
					size_t *ret_count);
	// NULL, or how often functions of the server were entered; free *ret.
	struct stall_error *(*functions)(void *state, struct stall_wait_hits **ret,
					 size_t *ret_count);
};

struct stall_wait_source {
	const struct stall_wait_source_calls *calls; // NULL: none yet
	void *state;
};

#endif

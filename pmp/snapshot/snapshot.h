// SPDX-License-Identifier: Apache-2.0
// The raw data that a backend takes from a process: registers, stacks and lock words of every
// thread. Nothing here is unwound or named yet.
#ifndef STALL_SNAPSHOT_H
#define STALL_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/error.h"
#include "proc/read_child.h"
#include "proc/target.h"
#include "snapshot/maps.h"

// x86-64 DWARF numbers: 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp, 7 rsp, 8-15 r8-r15,
// 16 the return address column, that is the PC. (System V ABI, AMD64 supplement, figure 3.36.)
#define STALL_REGS 17
#define STALL_REG_RBX 3
#define STALL_REG_RBP 6
#define STALL_REG_SP 7
#define STALL_REG_PC 16
#define STALL_KERNEL_FRAMES 48
#define STALL_COMM 16

struct stall_regs {
	uint64_t value[STALL_REGS];
	uint32_t valid; // bit N: value[N] is known
};

// How far a stack can be trusted. The label travels with the stack everywhere.
enum stall_label {
	STALL_VERIFIED, // the thread did not run while its registers and stack were copied
	STALL_RACED,	// it ran in between, every time: the copy may mix moments
	STALL_RUNNING,	// on a CPU: sampled there (exact), or, without frames, could not be sampled
	STALL_TRUNCATED, // verified, but the copy ends before the stack does
};
const char *stall_label_name(enum stall_label label);

// Why a thread is labelled raced although its copy was settled.
enum stall_label_reason {
	STALL_REASON_NONE,
	STALL_REASON_LIVE_READS, // it ran before memory outside the copy was read
	STALL_REASON_VFORK,	 // another process runs on its stack
	STALL_REASON_EXEC,	 // its memory may be the next program's already
	STALL_REASON_EXIT,	 // it has given up its stack: another thread may have it
	STALL_REASON_32BIT,	 // in 32-bit mode or in a 32-bit call, or that is not known
};
// NULL for STALL_REASON_NONE.
const char *stall_label_reason_name(enum stall_label_reason reason);

// The call by which a thread waits for a pthread object.
enum stall_object {
	STALL_OBJECT_NONE,
	STALL_OBJECT_MUTEX,
	STALL_OBJECT_RDLOCK,
	STALL_OBJECT_WRLOCK,
	STALL_OBJECT_COND,
};

struct stall_thread {
	pid_t tid;    // in our pid namespace
	pid_t ns_tid; // in the target's innermost pid namespace: what gettid() and lock words hold
	uint32_t process; // index into stall_snapshot.processes
	char comm[STALL_COMM];
	char state;	     // R S D T t Z X I, as in /proc/PID/stat; '?' unknown
	bool on_cpu;	     // at the last read
	bool own;	     // it serves the caller of this program
	uint64_t switches;   // nvcsw + nivcsw at the last read
	uint64_t fs_base;    // pthread_self(); 0 unknown
	uint64_t stopped_ns; // how long this tool kept the thread stopped, measured
	uint32_t passes;     // reads that were needed
	enum stall_label label;
	enum stall_label_reason label_reason;

	struct stall_regs regs;
	bool is_32bit; // its code or its system call, or that is not known: neither is shown
	bool in_syscall;
	int64_t syscall; // number, valid if in_syscall
	uint64_t args[6];
	// From a ring: the pthread object that the thread waits for, in place of a futex word, and
	// for how long. 0: not known.
	enum stall_object object_kind;
	uint64_t object;
	uint64_t waited_ns;

	uint64_t stack_address; // of the copy's first byte; usually SP
	size_t stack_size;
	uint8_t *stack; // in the snapshot's arena

	// It did not run since the capture before, whose threads[before] it is: its stack was copied
	// and unwound then, and its kernel frames are not here.
	bool unchanged;
	uint32_t before;

	uint32_t kernel_frame_count;
	uint64_t kernel_frames[STALL_KERNEL_FRAMES]; // innermost first
};

// The order of a snapshot's threads: less than 0 where `thread` comes before these.
static inline int stall_thread_order(const struct stall_thread *thread, uint32_t process, pid_t tid)
{
	if (thread->process != process)
		return thread->process < process ? -1 : 1;
	return (thread->tid > tid) - (thread->tid < tid);
}

// The memory around a futex word or a pthread object, read while its waiters were asleep on it.
#define STALL_FUTEX_BEFORE 16
#define STALL_FUTEX_AFTER 32
struct stall_futex {
	uint32_t process;
	uint64_t address;
	bool readable; // all bytes were read
	bool stable;   // two reads around the capture gave the same bytes
	bool read_twice;
	uint8_t bytes[STALL_FUTEX_BEFORE + STALL_FUTEX_AFTER]; // address - BEFORE onwards
	uint8_t first[STALL_FUTEX_BEFORE + STALL_FUTEX_AFTER]; // the earlier read, if read_twice
};

// A release of a lock that threads had waited long for; the latest first. Its stack is that of
// threads[thread_count + its index].
struct stall_release {
	uint64_t object;
	uint64_t ago_ns;    // of the latest, before the capture
	uint64_t waited_ns; // by the longest waiter, 0 unknown
	uint32_t count;	    // with the same stack
};

struct stall_process {
	struct stall_target target;
	pid_t ppid;
	char comm[STALL_COMM];
	char *exe;	  // as the target sees it; NULL unknown
	bool exe_deleted; // unlinked or replaced since it was started
	// The start of its first stack and of its heap, which differ in another program. 0 unknown.
	uint64_t start_stack, start_brk;
	struct stall_maps *maps;
	size_t thread_count;
	size_t threads_lost; // ended during the capture, or beyond the limit
};

// What ran on the CPUs since the capture before. Each sample is a thread with the registers and the
// stack of a moment when it ran.
struct stall_samples {
	size_t count;	    // threads[thread_count + release_count] onwards
	size_t lost;	    // there was no room for them
	uint64_t period_ns; // between two samples of a CPU; 0: nothing was sampled
	uint64_t window_ns; // how long the CPUs were sampled
	unsigned int cpus;
};

// A read or another step that failed: shown to the user, makes exit code 3.
struct stall_note {
	const char *code; // static, e.g. "module-unreadable", "threads-lost", "kernel-stacks"
	char *message;
};

// Where memory outside the copies comes from when there is no live process (a core file).
struct stall_memory {
	size_t (*read)(void *arg, uint32_t process, uint64_t address, void *buf, size_t size);
	void (*destroy)(void *arg);
	void *arg;
};

struct stall_snapshot {
	struct stall_arena *arena;  // not owned
	struct stall_memory memory; // all NULL: the live processes; destroyed with the snapshot
	const char *backend;	    // static: "bpf", "ptrace", "proc", "core", "inproc"
	char *backend_reason;	    // why it was chosen, or NULL
	uint64_t wall_ns;	    // CLOCK_REALTIME at its start
	uint64_t begun_ns;	    // CLOCK_MONOTONIC when it was made
	uint64_t snapshot_ns;	    // time from the first to the last read of the target
	struct stall_process *processes;
	size_t process_count;
	// By process, then tid; behind them those of the releases, then those of the samples.
	struct stall_thread *threads;
	size_t thread_count;
	struct stall_release *releases;
	size_t release_count;
	struct stall_samples samples;
	const struct stall_snapshot *before; // of the same burst; NULL: this is its first
	unsigned int moment;		     // number in the burst, from 0
	struct stall_futex *futexes;	     // distinct words waited on, sorted by process, address
	size_t futex_count;
	struct stall_note *notes;
	size_t note_count;
};

struct stall_snapshot_options {
	size_t max_stack;    // bytes of stack a thread, default STALL_DEFAULT_MAX_STACK
	size_t max_threads;  // default STALL_DEFAULT_MAX_THREADS
	unsigned int passes; // at most, default STALL_DEFAULT_PASSES
	unsigned int deadline_ms;
	bool kernel_stacks;
	bool stop_reads; // ptrace: stop threads blocked in read/recv too
	bool force;	 // also where the kernel is known to crash under BPF iterators
	// For the choice of a backend: the processes. NULL: none yet.
	const pid_t *pids;
	size_t pid_count;
	const char *ring; // inproc: the file, or a folder to search; NULL: searched for
};
#define STALL_DEFAULT_MAX_STACK (128 * 1024)
#define STALL_DEFAULT_MAX_THREADS 65536
#define STALL_DEFAULT_PASSES 8
#define STALL_DEFAULT_DEADLINE_MS 10000

void stall_snapshot_options_init(struct stall_snapshot_options *options);

// Makes an empty snapshot of the given processes: holds each by pidfd, reads its maps.
// `previous` (may be NULL) is the last snapshot of the same processes, for its open files.
struct stall_error *stall_snapshot_create(struct stall_arena *arena, const pid_t *pids,
					  size_t count, struct stall_snapshot *previous,
					  struct stall_snapshot **ret);
// The same with mappings from elsewhere than /proc/PID/maps, which may be refused.
struct stall_maps_source {
	struct stall_error *(*create)(void *arg, const struct stall_target *target,
				      struct stall_maps *previous, struct stall_open_files *files,
				      struct stall_maps **ret);
	void *arg;
};
struct stall_error *stall_snapshot_create_from(struct stall_arena *arena, const pid_t *pids,
					       size_t count, struct stall_snapshot *previous,
					       const struct stall_maps_source *source,
					       struct stall_snapshot **ret);
// Makes the next snapshot of a burst. It takes over the processes of `before` with their mappings,
// which are not read again: new threads are without them. STALL_ERROR_AGAIN or _NO_PROCESS: one of
// them changed or ended; `before` is as it was.
struct stall_error *stall_snapshot_follow(struct stall_snapshot *before,
					  struct stall_snapshot **ret);
// For walks in the order of its threads: advances *at to this one. False: it is not there.
bool stall_snapshot_seek(const struct stall_snapshot *snapshot, size_t *at, uint32_t process,
			 pid_t tid);
void stall_snapshot_destroy(struct stall_snapshot *snapshot);
// Frees what belongs to threads. What remains serves as `previous` of the next one.
void stall_snapshot_forget_threads(struct stall_snapshot *snapshot);

// Checks that it still runs the program whose maps were read. STALL_ERROR_NO_PROCESS: it has ended;
// STALL_ERROR_AGAIN: it has executed another one.
struct stall_error *stall_process_check(const struct stall_process *process);
struct stall_error *stall_process_changed_error(const struct stall_process *process);

struct stall_error *stall_snapshot_note(struct stall_snapshot *snapshot, const char *code,
					const char *format, ...)
	__attribute__((format(printf, 3, 4)));

// Reads memory of one of its processes, live or from the core file. Returns the bytes read.
static inline size_t stall_snapshot_read(const struct stall_snapshot *snapshot, uint32_t process,
					 uint64_t address, void *buf, size_t size)
{
	if (snapshot->memory.read)
		return snapshot->memory.read(snapshot->memory.arg, process, address, buf, size);
	return stall_read_child_range(&snapshot->processes[process].target, address, buf, size);
}

// Whether reads of a process were late: the rest of its memory is not read.
bool stall_snapshot_is_late(const struct stall_snapshot *snapshot, uint32_t process);

// Where the thread waits in futex(2), the address of the word; else 0. Takes wait, wait_bitset,
// lock_pi, lock_pi2 and wait_requeue_pi (linux/futex.h).
uint64_t stall_thread_futex(const struct stall_thread *thread);

// Fills snapshot->futexes with every word that threads wait on. Called twice by backends: before
// and after the copy; the second call sets `stable`.
struct stall_error *stall_snapshot_read_futexes(struct stall_snapshot *snapshot);

// The upper end of the stack that holds sp: the mapping's end, or less where fs_base lies between
// (glibc keeps struct pthread at the top of a thread's stack).
uint64_t stall_stack_end(const struct stall_maps *maps, uint64_t sp, uint64_t fs_base);

// Data that was read by the pid of a process that has ended meanwhile may be another's: its threads
// are removed, with a note. Where no thread is left, STALL_ERROR_NO_PROCESS.
struct stall_error *stall_snapshot_drop_ended(struct stall_snapshot *snapshot);

// Labels threads raced, with the reason, that did not run while their stacks were copied but whose
// stacks other threads may have written to. The system call that a thread is in shows it.
void stall_label_reasons_add(struct stall_snapshot *snapshot);

#endif

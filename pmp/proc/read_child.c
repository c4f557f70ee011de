// SPDX-License-Identifier: Apache-2.0
#include "proc/read_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "proc/late_reads.h"
#include "proc/proc_stat.h"
#include "proc/read_call.h"
#include "proc/read_child_main.h"

#define MS UINT64_C(1000000)

// A request and its answer share the child's memory, and the poller reads in a thread of its own.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct stall_read_cause memory_of(const struct stall_target *target)
{
	return (struct stall_read_cause){.pid = target->pid, .start_time = target->start_time};
}

#define MAX_STUCK 16	  // children that wait for a lock or a device,
#define MAX_STUCK_PATHS 8 // and those of them that wait for a device
#define MAX_ARENAS 4	  // a program has one

#define RUNNING_NS (5000 * MS) // for a child that waits for a CPU
#define KILL_NS (50 * MS)      // for a child that can be killed

struct child {
	pid_t pid; // 0: none
	int socket;
	struct stall_read_region *region;
	struct stall_read_cause cause; // of a stuck one
};

// One for the whole program, as its arena is.
static struct {
	pid_t owner; // of the children: after a fork they are not ours
	struct child child, stuck[MAX_STUCK];
	struct stall_arena *arenas[MAX_ARENAS];
	uint64_t patience_ns;
} readers = {.child.socket = -1, .patience_ns = STALL_READ_PATIENCE_MS * MS};

static void share_arenas(bool share)
{
	for (size_t i = 0; i < MAX_ARENAS; i++)
		if (readers.arenas[i])
			stall_arena_inherit(readers.arenas[i], share);
}

// The data in its memory is discarded with it.
static void child_deinit(struct child *child)
{
	if (child->socket >= 0)
		close(child->socket);
	if (child->region)
		munmap(child->region, sizeof(*child->region));
	*child = (struct child){.socket = -1};
}

static void end_child(struct child *child)
{
	if (child->pid > 0)
		stall_child_end(child->pid);
	child_deinit(child);
}

static struct stall_error *start_child(void)
{
	struct child child = {.socket = -1};
	pid_t parent = getpid();
	int sockets[2];

	void *memory = mmap(NULL, sizeof(struct stall_read_region), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return stall_error_os(errno, "cannot reserve memory for the reading process");
	child.region = memory;
	madvise(memory, sizeof(struct stall_read_region), MADV_DONTDUMP);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0) {
		child_deinit(&child);
		return stall_error_os(errno, "cannot make a socket for the reading process");
	}
	share_arenas(true);
	child.pid = fork();
	if (child.pid == 0)
		stall_read_child_main(child.region, sockets[1], parent);
	int errnum = errno;
	share_arenas(false);
	close(sockets[1]);
	child.socket = sockets[0];
	if (child.pid < 0) {
		child_deinit(&child);
		return stall_error_os(errnum, "cannot fork the reading process");
	}
	// Other children do not need it.
	madvise(memory, sizeof(struct stall_read_region), MADV_DONTFORK);
	readers.child = child;
	return NULL;
}

// Returns how many are left.
static size_t reap_stuck(void)
{
	size_t left = 0;

	for (size_t i = 0; i < MAX_STUCK; i++) {
		struct child *child = &readers.stuck[i];

		if (child->pid && waitpid(child->pid, NULL, __WALL | WNOHANG) != 0)
			child_deinit(child);
		left += child->pid != 0;
	}
	for (size_t i = 0; i < MAX_ARENAS && !left; i++)
		if (readers.arenas[i])
			stall_arena_release(readers.arenas[i]);
	return left;
}

// Or no more may be.
static bool is_stuck_on(const struct stall_read_cause *cause)
{
	size_t stuck = 0, of_paths = 0;

	for (size_t i = 0; i < MAX_STUCK; i++) {
		const struct child *child = &readers.stuck[i];

		if (!child->pid)
			continue;
		stuck++;
		of_paths += child->cause.is_path;
		if (stall_read_cause_is_same(&child->cause, cause))
			return true;
	}
	return stuck == MAX_STUCK || (cause->is_path && of_paths >= MAX_STUCK_PATHS);
}

// Whether the child has a CPU, or waits for one: then it is not delayed by the process.
static bool is_runnable(pid_t pid)
{
	struct stall_proc_stat stat;

	return stall_proc_stat_of_child(pid, &stat) && stat.state == 'R';
}

// Kills a child that is late. Where that is not possible now, the child and its memory are
// abandoned.
static void abandon(const struct stall_read_cause *cause)
{
	struct child *child = &readers.child;
	uint64_t until_ns = stall_clock_ns(CLOCK_MONOTONIC) + KILL_NS;
	struct timespec nap = {.tv_nsec = (long)MS / 10};

	stall_late_reads_mark_late(cause);
	kill(child->pid, SIGKILL);
	do {
		if (waitpid(child->pid, NULL, __WALL | WNOHANG) != 0) {
			child_deinit(child);
			return;
		}
		nanosleep(&nap, NULL);
	} while (stall_clock_ns(CLOCK_MONOTONIC) < until_ns);
	child->cause = *cause;
	for (size_t i = 0; i < MAX_STUCK; i++) {
		if (readers.stuck[i].pid)
			continue;
		readers.stuck[i] = *child;
		break;
	}
	*child = (struct child){.socket = -1};
	// It may still write to the memory of its request.
	for (size_t i = 0; i < MAX_ARENAS; i++)
		if (readers.arenas[i])
			stall_arena_hold(readers.arenas[i]);
}

// If the whole machine was stopped for a while, the time is over before the child has run. The child
// may then have answered, and sleep again, before it is checked.
static bool has_answered(struct pollfd *pollfd)
{
	return poll(pollfd, 1, 0) > 0;
}

// Waits for the answer. False: there was no progress in that time.
static bool wait_for_answer(uint64_t patience)
{
	struct pollfd pollfd = {.fd = readers.child.socket, .events = POLLIN};
	uint64_t since_ns = 0;
	uint32_t before = readers.child.region->settled;
	const struct timespec timeout = {(time_t)(patience / (1000 * MS)),
					 (long)(patience % (1000 * MS))};

	for (;;) {
		int ready = ppoll(&pollfd, 1, &timeout, NULL);
		if (ready > 0)
			return true;
		if (ready < 0 && errno == EINTR)
			continue;
		uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);
		uint32_t settled = readers.child.region->settled;
		if (settled != before) {
			before = settled;
			since_ns = 0;
			continue;
		}
		if (!since_ns)
			since_ns = now_ns;
		if (!is_runnable(readers.child.pid) || now_ns - since_ns > RUNNING_NS)
			return has_answered(&pollfd);
	}
}

static struct stall_error *late_error(const struct stall_read_cause *cause)
{
	if (cause->is_path)
		return stall_error_create(STALL_ERROR_LATE,
					  "its disk, or the server that has it, does not answer");
	return stall_error_create(STALL_ERROR_LATE,
				  "process %d gives no access to its memory now: a thread of it "
				  "keeps its mmap_lock",
				  cause->pid);
}

// `*ret_status`: the child's errno. STALL_ERROR_AGAIN: it died (of memory pressure), and with it
// what was put into its memory.
static struct stall_error *send_request(const struct stall_read_cause *cause,
					struct stall_read_message *message,
					const int given[STALL_READ_GIVEN], int *ret_fd,
					int *ret_status)
{
	uint64_t patience = stall_late_reads_patience(cause, readers.patience_ns);
	int fd = -1;

	if (patience && is_stuck_on(cause)) {
		stall_late_reads_mark_late(cause);
		patience = 0;
	}
	if (!patience)
		return late_error(cause);
	readers.child.region->settled = 0;
	bool alive = stall_read_send(readers.child.socket, message, given, STALL_READ_GIVEN);
	if (alive && !wait_for_answer(patience)) {
		abandon(cause);
		return late_error(cause);
	}
	if (!alive || !stall_read_receive(readers.child.socket, message, &fd, 1)) {
		end_child(&readers.child);
		return stall_error_create(STALL_ERROR_AGAIN, "the reading process ended");
	}
	stall_late_reads_mark_well(cause);
	*ret_status = message->status;
	if (ret_fd)
		*ret_fd = fd;
	else
		stall_closep(&fd);
	return NULL;
}

// The child's memory may then be filled.
static struct stall_error *need_child(void)
{
	reap_stuck();
	return readers.child.pid ? NULL : start_child();
}

// Children of ours have other children, or none.
static bool is_ours(void)
{
	if (!readers.owner)
		readers.owner = getpid();
	return readers.owner == getpid();
}

size_t stall_read_children_left(void)
{
	size_t left = 0;

	if (is_ours()) {
		pthread_mutex_lock(&lock);
		left = reap_stuck();
		pthread_mutex_unlock(&lock);
	}
	return left;
}

void stall_read_child_disown(void)
{
	readers.owner = -1;
}

bool stall_late_reads_since(const struct stall_target *target, uint64_t since_ns)
{
	bool locked = is_ours(); // a child may have been forked while another thread had it
	struct stall_read_cause cause = memory_of(target);

	if (locked)
		pthread_mutex_lock(&lock);
	bool is_late = stall_late_reads_have_since(&cause, since_ns);
	if (locked)
		pthread_mutex_unlock(&lock);
	return is_late;
}

void stall_read_child_set_patience(unsigned int ms)
{
	readers.patience_ns = (ms < STALL_READ_PATIENCE_MS ? ms : STALL_READ_PATIENCE_MS) * MS;
}

struct stall_error *stall_read_child_share(struct stall_arena *arena)
{
	size_t i = 0;

	pthread_mutex_lock(&lock);
	while (i < MAX_ARENAS && readers.arenas[i])
		i++;
	if (i < MAX_ARENAS) {
		readers.arenas[i] = arena;
		end_child(&readers.child); // which does not have it
	}
	pthread_mutex_unlock(&lock);
	if (i == MAX_ARENAS)
		return stall_error_create(STALL_ERROR_LIMIT, "more than %d arenas", MAX_ARENAS);
	return NULL;
}

void stall_read_child_forget(struct stall_arena *arena)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MAX_ARENAS; i++) {
		if (readers.arenas[i] != arena)
			continue;
		readers.arenas[i] = NULL;
		end_child(&readers.child);
	}
	pthread_mutex_unlock(&lock);
}

static bool is_shared(const struct stall_read *read)
{
	for (size_t i = 0; i < MAX_ARENAS; i++) {
		const struct stall_arena *arena = readers.arenas[i];
		const uint8_t *buf = read->buf;

		if (arena && buf >= arena->base && buf + read->size <= arena->base + arena->size)
			return true;
	}
	return false;
}

// Puts as many as there is room for into a request; one that is too large for the copy is cut.
static size_t fill(struct stall_read_region *region, const struct stall_read *reads, size_t count)
{
	size_t used = 0, filled = 0;

	for (; filled < count && filled < STALL_READ_RANGES; filled++) {
		const struct stall_read *read = &reads[filled];
		struct stall_read_range range = {read->address + read->done,
						 (char *)read->buf + read->done,
						 read->size - read->done, 0};

		if (!is_shared(read)) {
			if (used == STALL_READ_COPY)
				break;
			if (range.size > STALL_READ_COPY - used) {
				if (filled)
					break;
				range.size = STALL_READ_COPY;
			}
			range.to = region->copy + used;
			used += range.size;
		}
		region->ranges[filled] = range;
	}
	return filled;
}

// Takes the finished reads over. Returns how many are finished.
static size_t take(const struct stall_read_region *region, struct stall_read *reads, size_t settled)
{
	for (size_t i = 0; i < settled; i++) {
		const struct stall_read_range *range = &region->ranges[i];
		struct stall_read *read = &reads[i];

		if (range->to != (char *)read->buf + read->done)
			memcpy((char *)read->buf + read->done, range->to, range->done);
		read->done += range->done;
		// Only the first of a request is ever cut.
		if (range->done == range->size && read->done < read->size)
			return 0;
	}
	return settled;
}

// A request reads the ranges in turn, through the file where the call fails.
static struct stall_error *read_some(const struct stall_target *target, struct stall_read *reads,
				     size_t count, bool *by_file, size_t *ret, int *ret_status)
{
	struct stall_error *err = need_child();
	struct stall_read_cause cause = memory_of(target);

	if (err)
		return err;
	struct stall_read_region *region = readers.child.region;
	struct stall_read_message message = {
		.op = *by_file ? STALL_READ_MEMORY_FILE : STALL_READ_MEMORY,
		.pid = target->reader,
		.count = (uint32_t)fill(region, reads, count),
	};
	const int given[STALL_READ_GIVEN] = {*by_file ? target->procfd : -1, -1};

	err = send_request(&cause, &message, given, NULL, ret_status);
	if (err)
		return err;
	*ret = take(region, reads, region->settled);
	if (!*by_file && (*ret_status == ENOSYS || *ret_status == EPERM)) {
		*by_file = true;
		*ret_status = 0;
	}
	return NULL;
}

// By this very process: its own memory, and where it is a child itself, which can be killed: the
// wait for this file can be, that for process_vm_readv(2) cannot.
static int read_here(const struct stall_target *target, struct stall_read *reads, size_t count)
{
	_cleanup_close_ int fd = openat(target->procfd, "mem", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? ESRCH : errno;
	for (size_t i = 0; i < count; i++) {
		struct stall_read_range range = {reads[i].address, reads[i].buf, reads[i].size, 0};

		stall_read_range(fd, &range);
		reads[i].done = range.done;
	}
	return 0;
}

// Once more where the child died.
static struct stall_error *read_all(const struct stall_target *target, struct stall_read *reads,
				    size_t count, bool *by_file, int *ret_status)
{
	bool again = true;

	for (size_t at = 0, n; at < count && !*ret_status; at += n) {
		struct stall_error *err =
			read_some(target, reads + at, count - at, by_file, &n, ret_status);

		if (err && err->code == STALL_ERROR_AGAIN && again) {
			stall_error_destroy(err);
			again = false;
			n = 0;
			continue;
		}
		if (err)
			return err;
	}
	return NULL;
}

struct stall_error *stall_read_child_memory(const struct stall_target *target,
					    struct stall_read *reads, size_t count)
{
	struct stall_error *err = NULL;
	bool by_file = false;
	int status = 0;

	for (size_t i = 0; i < count; i++)
		reads[i].done = 0;
	// A child may have been forked while another thread had the lock.
	if (!is_ours() || target->pid == getpid()) {
		status = read_here(target, reads, count);
	} else {
		pthread_mutex_lock(&lock);
		err = read_all(target, reads, count, &by_file, &status);
		pthread_mutex_unlock(&lock);
	}
	if (err)
		return err;
	// What a process permits its ancestors, as Yama does, it does not permit their children.
	if (by_file && (status == EPERM || status == EACCES))
		status = read_here(target, reads, count);
	if (status == ESRCH)
		return stall_error_create(STALL_ERROR_NO_PROCESS, "process %d has ended",
					  target->pid);
	if (status)
		return stall_error_os(
			status,
			"cannot read the memory of process %d (needs its user, or CAP_SYS_PTRACE)",
			target->pid);
	return NULL;
}

size_t stall_read_child_range(const struct stall_target *target, uint64_t address, void *buf,
			      size_t size)
{
	struct stall_read read = {.address = address, .buf = buf, .size = size};

	stall_error_destroy(stall_read_child_memory(target, &read, 1));
	return read.done;
}

/* Requests. */

static void get_given(const struct stall_read_call *call, int ret[STALL_READ_GIVEN])
{
	ret[STALL_READ_FROM] = call->given;
	ret[STALL_READ_TO] = call->message.op == STALL_PASS_FILE ? call->to : -1;
}

// Puts what goes with the request into the child's memory.
static void put(struct stall_read_region *region, const struct stall_read_call *call)
{
	if (call->message.op == STALL_LIST_DESCRIPTORS)
		memcpy(region->numbers, call->in, call->message.count * sizeof(region->numbers[0]));
	else if (call->in)
		memcpy(region->copy, call->in, call->message.size);
}

// Takes the answer over.
static void take_answer(const struct stall_read_region *region, struct stall_read_call *call)
{
	if (call->message.size > call->out_size)
		call->message.size = call->out_size;
	if (call->out && (!call->message.status || call->message.status == STALL_READ_DISTRUST))
		memcpy(call->out, region->copy, call->message.size);
	call->status = region->status;
}

// A child of ours is disposable itself. It has one file open at a time, as the reading child has.
static struct stall_error *answer_here(struct stall_read_call *call)
{
	static struct stall_read_region *region;
	static int file = -1;
	int given[STALL_READ_GIVEN];

	if (!region && !(region = malloc(sizeof(*region))))
		return &stall_enomem;
	put(region, call);
	get_given(call, given);
	call->message.status = stall_read_answer(region, &call->message, given, &file);
	take_answer(region, call);
	if (call->message.op == STALL_OPEN_PATH) {
		call->fd = file;
		file = -1;
	}
	return NULL;
}

static struct stall_error *call_child(struct stall_read_call *call)
{
	const struct stall_read_message request = call->message;
	struct stall_error *err = NULL;
	int given[STALL_READ_GIVEN], status;

	get_given(call, given);
	for (int attempt = 0; attempt < 2; attempt++) {
		stall_error_destroy(err);
		call->message = request;
		err = need_child();
		if (err)
			return err;
		put(readers.child.region, call);
		err = send_request(&call->cause, &call->message, given, &call->fd, &status);
		if (!err)
			take_answer(readers.child.region, call);
		if (!err || err->code != STALL_ERROR_AGAIN || request.op == STALL_READ_FILE)
			return err;
	}
	return err;
}

struct stall_error *stall_read_call(struct stall_read_call *call)
{
	call->fd = -1;
	if (!is_ours())
		return answer_here(call);
	// This process may not be kept, at its exit either.
	if (call->message.op == STALL_OPEN_PATH)
		call->message.how |= STALL_PATH_NO_WAIT;
	pthread_mutex_lock(&lock);
	struct stall_error *err = call_child(call);
	pthread_mutex_unlock(&lock);
	return err;
}

/* Files of /proc. */

struct stall_error *stall_read_child_open(const struct stall_target *target, const char *name)
{
	struct stall_read_call call = {
		.cause = memory_of(target),
		.message = {.op = STALL_OPEN_FILE, .size = strlen(name) + 1},
		.given = target->procfd,
		.in = name,
	};
	struct stall_error *err = stall_read_call(&call);

	if (!err && call.message.status)
		err = stall_error_os(call.message.status, "cannot open /proc/%d/%s", target->pid,
				     name);
	return err;
}

static struct stall_error *read_open_file(const struct stall_target *target, int64_t offset,
					  void *buf, size_t size, size_t *ret)
{
	struct stall_read_call call = {
		.cause = memory_of(target),
		.message = {.op = STALL_READ_FILE,
			    .size = size < STALL_READ_COPY ? size : STALL_READ_COPY,
			    .offset = offset},
		.given = -1,
		.out = buf,
		.out_size = size,
	};
	struct stall_error *err = stall_read_call(&call);

	if (!err && call.message.status)
		err = stall_error_os(call.message.status, "cannot read a file of /proc/%d",
				     target->pid);
	if (!err)
		*ret = call.message.size;
	return err;
}

struct stall_error *stall_read_child_next(const struct stall_target *target, void *buf, size_t size,
					  size_t *ret)
{
	return read_open_file(target, -1, buf, size, ret);
}

struct stall_error *stall_read_child_at(const struct stall_target *target, uint64_t offset,
					void *buf, size_t size, size_t *ret)
{
	return read_open_file(target, (int64_t)offset, buf, size, ret);
}

size_t stall_read_child_text(const struct stall_target *target, const char *name, void *buf,
			     size_t size)
{
	struct stall_error *err = stall_read_child_open(target, name);
	size_t used = 0, n = 1;

	while (!err && n && used < size) {
		err = stall_read_child_next(target, (char *)buf + used, size - used, &n);
		used += err ? 0 : n;
	}
	stall_error_destroy(err);
	return used;
}

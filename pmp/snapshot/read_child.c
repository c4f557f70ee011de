// SPDX-License-Identifier: Apache-2.0
#include "snapshot/read_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "snapshot/read_child_main.h"

#define MAX_LATE 16 // processes that are remembered
#define MS UINT64_C(1000000)
#define SHORT_PATIENCE_NS (20 * MS) // where a read was late before
#define ALONE_NS (1000 * MS)

// A request and its answer share the child's memory, and the poller reads in a thread of its own.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// Processes of which a read was late.
static struct late {
	pid_t pid;
	uint64_t start_time;
	uint64_t at_ns;	     // when a read was late,
	uint64_t refused_ns; // when one was not tried after it,
	uint64_t well_ns;    // and when one went well
} late_reads[MAX_LATE];

static struct late *find_late(const struct stall_target *target)
{
	for (size_t i = 0; i < MAX_LATE; i++)
		if (late_reads[i].pid == target->pid &&
		    late_reads[i].start_time == target->start_time)
			return &late_reads[i];
	return NULL;
}

static void late_reads_mark_late(const struct stall_target *target)
{
	struct late *late = find_late(target);

	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!late_reads[i].pid)
			late = &late_reads[i];
	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!i || late_reads[i].at_ns < late->at_ns)
			late = &late_reads[i];
	*late = (struct late){
		.pid = target->pid,
		.start_time = target->start_time,
		.at_ns = stall_clock_ns(CLOCK_MONOTONIC),
	};
}

static void late_reads_mark_well(const struct stall_target *target)
{
	struct late *late = find_late(target);

	if (late)
		late->well_ns = stall_clock_ns(CLOCK_MONOTONIC);
}

// `patience_ns`, less where a read was late before, or 0: the read is not tried, which is
// remembered.
static uint64_t late_reads_patience(const struct stall_target *target, uint64_t patience_ns)
{
	struct late *late = find_late(target);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (!late || late->at_ns <= late->well_ns)
		return patience_ns;
	if (now_ns - late->at_ns >= ALONE_NS)
		return SHORT_PATIENCE_NS;
	late->refused_ns = now_ns;
	return 0;
}

#define MAX_STUCK 8  // children that wait for a lock
#define MAX_ARENAS 4 // a program has one

#define RUNNING_NS (5000 * MS) // for a child that waits for a CPU
#define KILL_NS (50 * MS)      // for a child that can be killed

struct child {
	pid_t pid; // 0: none
	int socket;
	struct stall_read_region *region;
	pid_t waits_for; // of a stuck one: the process whose lock it is
	uint64_t start_time;
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
	if (child->pid > 0 && kill(child->pid, SIGKILL) == 0)
		while (waitpid(child->pid, NULL, __WALL) < 0 && errno == EINTR)
			;
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

static void reap_stuck(void)
{
	size_t left = 0;

	for (size_t i = 0; i < MAX_STUCK; i++) {
		struct child *child = &readers.stuck[i];

		if (child->pid && waitpid(child->pid, NULL, __WALL | WNOHANG) != 0)
			child_deinit(child);
		left += child->pid != 0;
	}
	if (left)
		return;
	for (size_t i = 0; i < MAX_ARENAS; i++)
		if (readers.arenas[i])
			stall_arena_release(readers.arenas[i]);
}

static bool is_stuck_on(const struct stall_target *target)
{
	size_t stuck = 0;

	for (size_t i = 0; i < MAX_STUCK; i++) {
		const struct child *child = &readers.stuck[i];

		stuck += child->pid != 0;
		if (child->pid && child->waits_for == target->pid &&
		    child->start_time == target->start_time)
			return true;
	}
	return stuck == MAX_STUCK;
}

// Whether the child has a CPU, or waits for one: then it is not delayed by the process.
static bool is_runnable(pid_t pid)
{
	char path[32], text[128];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n < 0)
		return false;
	text[n] = '\0';
	const char *state = strrchr(text, ')');
	return state && state[1] == ' ' && state[2] == 'R';
}

// Kills a child that is late. Where that is not possible now, the child and its memory are
// abandoned.
static void abandon(const struct stall_target *target)
{
	struct child *child = &readers.child;
	uint64_t until_ns = stall_clock_ns(CLOCK_MONOTONIC) + KILL_NS;
	struct timespec nap = {.tv_nsec = (long)MS / 10};

	late_reads_mark_late(target);
	kill(child->pid, SIGKILL);
	do {
		if (waitpid(child->pid, NULL, __WALL | WNOHANG) != 0) {
			child_deinit(child);
			return;
		}
		nanosleep(&nap, NULL);
	} while (stall_clock_ns(CLOCK_MONOTONIC) < until_ns);
	child->waits_for = target->pid;
	child->start_time = target->start_time;
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
	struct timespec timeout = {patience / (1000 * MS), patience % (1000 * MS)};

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

static struct stall_error *late_error(const struct stall_target *target)
{
	return stall_error_create(STALL_ERROR_LATE,
				  "process %d gives no access to its memory now: a thread of it "
				  "keeps its mmap_lock",
				  target->pid);
}

// `*ret_status`: the child's errno. STALL_ERROR_AGAIN: it died (of memory pressure), and with it
// what was put into its memory.
static struct stall_error *call(const struct stall_target *target,
				struct stall_read_message *message, bool with_procfd, int *ret_fd,
				int *ret_status)
{
	uint64_t patience = late_reads_patience(target, readers.patience_ns);
	struct stall_error *err = NULL;
	int fd = -1;

	reap_stuck();
	if (patience && is_stuck_on(target)) {
		late_reads_mark_late(target);
		patience = 0;
	}
	if (!patience)
		return late_error(target);
	if (!readers.child.pid)
		err = start_child();
	if (err)
		return err;
	readers.child.region->settled = 0;
	bool alive =
		stall_read_send(readers.child.socket, message, with_procfd ? target->procfd : -1);
	if (alive && !wait_for_answer(patience)) {
		abandon(target);
		return late_error(target);
	}
	if (!alive || !stall_read_receive(readers.child.socket, message, &fd)) {
		end_child(&readers.child);
		return stall_error_create(STALL_ERROR_AGAIN, "the reading process ended");
	}
	late_reads_mark_well(target);
	*ret_status = message->status;
	if (ret_fd)
		*ret_fd = fd;
	else
		stall_closep(&fd);
	return NULL;
}

// Children of ours have other children, or none.
static bool is_ours(void)
{
	if (!readers.owner)
		readers.owner = getpid();
	return readers.owner == getpid();
}

bool stall_late_reads_since(const struct stall_target *target, uint64_t since_ns)
{
	bool locked = is_ours(); // a child may have been forked while another thread had it
	const struct late *late;
	bool is_late;

	if (locked)
		pthread_mutex_lock(&lock);
	late = find_late(target);
	is_late = late && (late->at_ns >= since_ns || late->refused_ns >= since_ns);
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
	struct stall_error *err = readers.child.pid ? NULL : start_child();

	if (err)
		return err;
	struct stall_read_region *region = readers.child.region;
	struct stall_read_message message = {
		.op = *by_file ? STALL_READ_MEMORY_FILE : STALL_READ_MEMORY,
		.pid = target->reader,
		.count = fill(region, reads, count),
	};
	err = call(target, &message, *by_file, NULL, ret_status);
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

// With the path of `message` below the target's folder. Once more where the child died.
static struct stall_error *call_with_path(const struct stall_target *target, enum stall_read_op op,
					  const char *path, int *ret_fd, int *ret_status)
{
	struct stall_error *err = NULL;

	pthread_mutex_lock(&lock);
	for (int attempt = 0; attempt < 2; attempt++) {
		struct stall_read_message message = {.op = op};

		stall_error_destroy(err);
		snprintf(message.path, sizeof(message.path), "%s", path);
		err = call(target, &message, true, ret_fd, ret_status);
		if (!err || err->code != STALL_ERROR_AGAIN)
			break;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

struct stall_error *stall_read_child_open(const struct stall_target *target, const char *name)
{
	int status = 0;

	is_ours();
	struct stall_error *err = call_with_path(target, STALL_OPEN_FILE, name, NULL, &status);
	if (!err && status)
		err = stall_error_os(status, "cannot open /proc/%d/%s", target->pid, name);
	return err;
}

struct stall_error *stall_read_child_next(const struct stall_target *target, void *buf, size_t size,
					  size_t *ret)
{
	struct stall_read_message message = {
		.op = STALL_READ_FILE,
		.size = size < STALL_READ_COPY ? size : STALL_READ_COPY,
	};
	int status = 0;

	pthread_mutex_lock(&lock);
	struct stall_error *err = call(target, &message, false, NULL, &status);
	if (!err && status)
		err = stall_error_os(status, "cannot read a file of /proc/%d", target->pid);
	if (!err && message.size)
		memcpy(buf, readers.child.region->copy, message.size);
	pthread_mutex_unlock(&lock);
	if (!err)
		*ret = message.size;
	return err;
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

int stall_read_child_link(const struct stall_target *target, const char *path)
{
	int fd = -1, status = 0;

	is_ours();
	struct stall_error *err = call_with_path(target, STALL_OPEN_LINK, path, &fd, &status);
	if (err)
		status = err->code == STALL_ERROR_LATE ? ETIME : EIO;
	stall_error_destroy(err);
	if (!status && fd < 0)
		status = EMFILE;
	errno = status;
	return fd;
}

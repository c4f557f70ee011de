// SPDX-License-Identifier: Apache-2.0
#include "read_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child_process.h"
#include "cleanup.h"
#include "clock.h"

#define MAX_RANGES 8192 // of one request
#define BATCH 512	// ranges a call; the kernel takes 1024 (UIO_MAXIOV)
#define COPY_BYTES ((size_t)1 << 20)
#define MAX_STUCK 8  // children that wait for a lock
#define MAX_ARENAS 4 // a program has one
#define MAX_LATE 16  // processes that are remembered
#define MAX_PATH 64

#define MS UINT64_C(1000000)
#define SHORT_PATIENCE_NS (20 * MS) // where a read was late before
#define ALONE_NS (1000 * MS)
#define RUNNING_NS (5000 * MS) // for a child that waits for a CPU
#define KILL_NS (50 * MS)      // for a child that can be killed

enum op { READ_MEMORY, READ_MEMORY_FILE, OPEN_FILE, READ_FILE, OPEN_LINK };

struct message {
	enum op op;
	int status; // errno of the child
	pid_t pid;
	uint32_t count;
	size_t size;
	char path[MAX_PATH];
};

struct range {
	uint64_t address;
	void *to; // in memory that both have, at one address
	size_t size, done;
};

struct region {
	_Atomic uint32_t settled; // ranges of the request, as they are done
	struct range ranges[MAX_RANGES];
	uint8_t copy[COPY_BYTES]; // of what goes to memory that the child has not
};

struct child {
	pid_t pid; // 0: none
	int socket;
	struct region *region;
	pid_t waits_for; // of a stuck one: the process whose lock it is
	uint64_t start_time;
};

struct late {
	pid_t pid;
	uint64_t start_time;
	uint64_t at_ns;	     // when a read was late,
	uint64_t refused_ns; // when one was not tried after it,
	uint64_t well_ns;    // and when one went well
};

// One for the whole program, as its arena is.
static struct {
	pid_t owner; // of the children: after a fork they are not ours
	struct child child, stuck[MAX_STUCK];
	struct stall_arena *arenas[MAX_ARENAS];
	struct late late[MAX_LATE];
	uint64_t patience_ns;
} readers = {.child.socket = -1, .patience_ns = STALL_READ_PATIENCE_MS * MS};

// ---- in the child ----

static bool send_message(int socket, const struct message *message, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {};
	struct iovec iov = {(void *)message, sizeof(*message)};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (fd >= 0) {
		header.msg_control = &control;
		header.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
	}
	do {
		n = sendmsg(socket, &header, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof(*message);
}

static bool receive_message(int socket, struct message *ret, int *ret_fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {ret, sizeof(*ret)};
	struct msghdr header = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n;

	*ret_fd = -1;
	do {
		n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	struct cmsghdr *cmsg = n > 0 ? CMSG_FIRSTHDR(&header) : NULL;
	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(cmsg), sizeof(int));
	return n == (ssize_t)sizeof(*ret);
}

// One call. Marks what was read and returns how many ranges are settled (at least one, since the
// range that a call stopped in cannot be read further), or 0 with errno.
static size_t read_batch(pid_t pid, struct range *ranges, size_t count)
{
	struct iovec local[BATCH], remote[BATCH];
	size_t settled = 0;

	for (size_t i = 0; i < count; i++) {
		local[i] = (struct iovec){ranges[i].to, ranges[i].size};
		remote[i] = (struct iovec){(void *)(uintptr_t)ranges[i].address, ranges[i].size};
	}
	ssize_t n = process_vm_readv(pid, local, count, remote, count, 0);
	if (n < 0 && errno != EFAULT)
		return 0;
	for (size_t left = n < 0 ? 0 : (size_t)n; settled < count; settled++) {
		struct range *range = &ranges[settled];

		if (left < range->size) {
			range->done = left;
			return settled + 1;
		}
		range->done = range->size;
		left -= range->size;
	}
	return settled;
}

static int read_ranges(struct region *region, pid_t pid, size_t count)
{
	for (size_t i = 0; i < count;) {
		size_t settled =
			read_batch(pid, region->ranges + i, count - i < BATCH ? count - i : BATCH);

		if (!settled)
			return errno;
		i += settled;
		region->settled = i;
	}
	return 0;
}

static void read_range(int fd, struct range *range)
{
	while (range->done < range->size) {
		ssize_t n = pread(fd, (char *)range->to + range->done, range->size - range->done,
				  (off_t)(range->address + range->done));
		if (n <= 0)
			return;
		range->done += (size_t)n;
	}
}

// Where process_vm_readv(2) is missing or filtered by seccomp.
static int read_ranges_of_file(struct region *region, int procfd, size_t count)
{
	_cleanup_close_ int fd = openat(procfd, "mem", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? ESRCH : errno;
	for (size_t i = 0; i < count; i++) {
		read_range(fd, &region->ranges[i]);
		region->settled = i + 1;
	}
	return 0;
}

// A file of /proc gives a page a call.
static int read_file(struct region *region, int fd, struct message *message)
{
	size_t size = 0;

	while (size < message->size) {
		ssize_t n = read(fd, region->copy + size, message->size - size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && !size)
			return errno;
		if (n <= 0)
			break;
		size += (size_t)n;
		region->settled++;
	}
	message->size = size;
	return 0;
}

// `file` stays open between two messages.
static int answer(struct region *region, struct message *message, int procfd, int *file)
{
	switch (message->op) {
	case READ_MEMORY:
		return read_ranges(region, message->pid, message->count);
	case READ_MEMORY_FILE:
		return read_ranges_of_file(region, procfd, message->count);
	case OPEN_FILE:
		stall_closep(file);
		*file = openat(procfd, message->path, O_RDONLY | O_CLOEXEC);
		return *file < 0 ? errno : 0;
	case READ_FILE:
		return read_file(region, *file, message);
	case OPEN_LINK:
		stall_closep(file);
		*file = openat(procfd, message->path, O_PATH | O_CLOEXEC);
		return *file < 0 ? errno : 0;
	}
	return EINVAL;
}

static _Noreturn void child_main(struct region *region, int socket, pid_t parent)
{
	struct message message;
	int procfd, file = -1;

	stall_child_set_signals();
	stall_child_keep_only(&socket, 1);
	socket = STALL_CHILD_FD;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	// It may have been killed before that.
	if (getppid() != parent)
		_exit(0);
	while (receive_message(socket, &message, &procfd)) {
		message.status = answer(region, &message, procfd, &file);
		stall_closep(&procfd);
		if (!send_message(socket, &message, message.op == OPEN_LINK ? file : -1))
			break;
		// What is open holds its file system.
		if (message.op == OPEN_LINK || (message.op == READ_FILE && !message.size)) {
			stall_closep(&file);
			file = -1;
		}
	}
	_exit(0);
}

// ---- in the program ----

static void share_arenas(bool share)
{
	for (size_t i = 0; i < MAX_ARENAS; i++)
		if (readers.arenas[i])
			stall_arena_inherit(readers.arenas[i], share);
}

// What it left in its memory goes with it.
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

	void *memory = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return stall_error_os(errno, "cannot reserve memory for the reading process");
	child.region = memory;
	madvise(memory, sizeof(struct region), MADV_DONTDUMP);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0) {
		child_deinit(&child);
		return stall_error_os(errno, "cannot make a socket for the reading process");
	}
	share_arenas(true);
	child.pid = fork();
	if (child.pid == 0)
		child_main(child.region, sockets[1], parent);
	int errnum = errno;
	share_arenas(false);
	close(sockets[1]);
	child.socket = sockets[0];
	if (child.pid < 0) {
		child_deinit(&child);
		return stall_error_os(errnum, "cannot fork the reading process");
	}
	// Other children have no use for it.
	madvise(memory, sizeof(struct region), MADV_DONTFORK);
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

static struct late *find_late(const struct stall_target *target)
{
	for (size_t i = 0; i < MAX_LATE; i++)
		if (readers.late[i].pid == target->pid &&
		    readers.late[i].start_time == target->start_time)
			return &readers.late[i];
	return NULL;
}

static void mark_late(const struct stall_target *target)
{
	struct late *late = find_late(target);

	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!readers.late[i].pid)
			late = &readers.late[i];
	for (size_t i = 0; !late && i < MAX_LATE; i++)
		if (!i || readers.late[i].at_ns < late->at_ns)
			late = &readers.late[i];
	*late = (struct late){
		.pid = target->pid,
		.start_time = target->start_time,
		.at_ns = stall_clock_ns(CLOCK_MONOTONIC),
	};
}

static void mark_well(const struct stall_target *target)
{
	struct late *late = find_late(target);

	if (late)
		late->well_ns = stall_clock_ns(CLOCK_MONOTONIC);
}

bool stall_read_child_was_late(const struct stall_target *target, uint64_t since_ns)
{
	const struct late *late = find_late(target);

	return late && (late->at_ns >= since_ns || late->refused_ns >= since_ns);
}

// 0: it is not tried.
static uint64_t patience_ns(const struct stall_target *target)
{
	struct late *late = find_late(target);
	uint64_t now_ns = stall_clock_ns(CLOCK_MONOTONIC);

	if (!late || late->at_ns <= late->well_ns)
		return readers.patience_ns;
	if (now_ns - late->at_ns >= ALONE_NS)
		return SHORT_PATIENCE_NS;
	late->refused_ns = now_ns;
	return 0;
}

// Whether the child has a CPU, or waits for one: then it is not the process that keeps it.
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

// Kills a child that is late. Where that cannot be done now, it stays behind with its memory.
static void abandon(const struct stall_target *target)
{
	struct child *child = &readers.child;
	uint64_t until_ns = stall_clock_ns(CLOCK_MONOTONIC) + KILL_NS;
	struct timespec nap = {.tv_nsec = (long)MS / 10};

	mark_late(target);
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
	// It may still write what it has read to where it was told to.
	for (size_t i = 0; i < MAX_ARENAS; i++)
		if (readers.arenas[i])
			stall_arena_hold(readers.arenas[i]);
}

// Until the answer is there. False: it is late, by no progress in that time.
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
			return false;
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
static struct stall_error *call(const struct stall_target *target, struct message *message,
				bool with_procfd, int *ret_fd, int *ret_status)
{
	uint64_t patience = patience_ns(target);
	struct stall_error *err = NULL;
	int fd = -1;

	reap_stuck();
	if (patience && is_stuck_on(target)) {
		mark_late(target);
		patience = 0;
	}
	if (!patience)
		return late_error(target);
	if (!readers.child.pid)
		err = start_child();
	if (err)
		return err;
	readers.child.region->settled = 0;
	bool alive = send_message(readers.child.socket, message, with_procfd ? target->procfd : -1);
	if (alive && !wait_for_answer(patience)) {
		abandon(target);
		return late_error(target);
	}
	if (!alive || !receive_message(readers.child.socket, message, &fd)) {
		end_child(&readers.child);
		return stall_error_create(STALL_ERROR_AGAIN, "the reading process ended");
	}
	mark_well(target);
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

void stall_read_child_set_patience(unsigned int ms)
{
	readers.patience_ns = (ms < STALL_READ_PATIENCE_MS ? ms : STALL_READ_PATIENCE_MS) * MS;
}

struct stall_error *stall_read_child_share(struct stall_arena *arena)
{
	for (size_t i = 0; i < MAX_ARENAS; i++) {
		if (readers.arenas[i])
			continue;
		readers.arenas[i] = arena;
		end_child(&readers.child); // which does not have it
		return NULL;
	}
	return stall_error_create(STALL_ERROR_LIMIT, "more than %d arenas", MAX_ARENAS);
}

void stall_read_child_forget(struct stall_arena *arena)
{
	for (size_t i = 0; i < MAX_ARENAS; i++) {
		if (readers.arenas[i] != arena)
			continue;
		readers.arenas[i] = NULL;
		end_child(&readers.child);
	}
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
static size_t fill(struct region *region, const struct stall_read *reads, size_t count)
{
	size_t used = 0, filled = 0;

	for (; filled < count && filled < MAX_RANGES; filled++) {
		const struct stall_read *read = &reads[filled];
		struct range range = {read->address + read->done, (char *)read->buf + read->done,
				      read->size - read->done, 0};

		if (!is_shared(read)) {
			if (used == COPY_BYTES)
				break;
			if (range.size > COPY_BYTES - used) {
				if (filled)
					break;
				range.size = COPY_BYTES;
			}
			range.to = region->copy + used;
			used += range.size;
		}
		region->ranges[filled] = range;
	}
	return filled;
}

// Takes over what was settled. Returns how many of the reads are done with.
static size_t take(const struct region *region, struct stall_read *reads, size_t settled)
{
	for (size_t i = 0; i < settled; i++) {
		const struct range *range = &region->ranges[i];
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

// A request reads the ranges in turn, and one by the file where the call does not do.
static struct stall_error *read_some(const struct stall_target *target, struct stall_read *reads,
				     size_t count, bool *by_file, size_t *ret, int *ret_status)
{
	struct stall_error *err = readers.child.pid ? NULL : start_child();

	if (err)
		return err;
	struct region *region = readers.child.region;
	struct message message = {
		.op = *by_file ? READ_MEMORY_FILE : READ_MEMORY,
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
		struct range range = {reads[i].address, reads[i].buf, reads[i].size, 0};

		read_range(fd, &range);
		reads[i].done = range.done;
	}
	return 0;
}

struct stall_error *stall_read_child_memory(const struct stall_target *target,
					    struct stall_read *reads, size_t count)
{
	bool by_file = false, again = true;
	int status = 0;

	for (size_t i = 0; i < count; i++)
		reads[i].done = 0;
	if (!is_ours() || target->pid == getpid()) {
		status = read_here(target, reads, count);
		count = 0;
	}
	for (size_t at = 0, n; at < count && !status; at += n) {
		struct stall_error *err =
			read_some(target, reads + at, count - at, &by_file, &n, &status);

		if (err && err->code == STALL_ERROR_AGAIN && again) {
			stall_error_destroy(err);
			again = false;
			n = 0;
			continue;
		}
		if (err)
			return err;
	}
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

// With the path of `message` below the target's folder. Once more where the child died.
static struct stall_error *call_with_path(const struct stall_target *target, enum op op,
					  const char *path, int *ret_fd, int *ret_status)
{
	struct stall_error *err = NULL;

	for (int attempt = 0; attempt < 2; attempt++) {
		struct message message = {.op = op};

		stall_error_destroy(err);
		snprintf(message.path, sizeof(message.path), "%s", path);
		err = call(target, &message, true, ret_fd, ret_status);
		if (!err || err->code != STALL_ERROR_AGAIN)
			break;
	}
	return err;
}

struct stall_error *stall_read_child_open(const struct stall_target *target, const char *name)
{
	int status = 0;

	is_ours();
	struct stall_error *err = call_with_path(target, OPEN_FILE, name, NULL, &status);
	if (!err && status)
		err = stall_error_os(status, "cannot open /proc/%d/%s", target->pid, name);
	return err;
}

struct stall_error *stall_read_child_next(const struct stall_target *target, void *buf, size_t size,
					  size_t *ret)
{
	struct message message = {
		.op = READ_FILE,
		.size = size < COPY_BYTES ? size : COPY_BYTES,
	};
	int status = 0;

	struct stall_error *err = call(target, &message, false, NULL, &status);
	if (!err && status)
		err = stall_error_os(status, "cannot read a file of /proc/%d", target->pid);
	if (err)
		return err;
	if (message.size)
		memcpy(buf, readers.child.region->copy, message.size);
	*ret = message.size;
	return NULL;
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
	struct stall_error *err = call_with_path(target, OPEN_LINK, path, &fd, &status);
	if (err)
		status = err->code == STALL_ERROR_LATE ? ETIME : EIO;
	stall_error_destroy(err);
	if (!status && fd < 0)
		status = EMFILE;
	errno = status;
	return fd;
}

// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "inproc/recorder_settings.h"

// MySQL 5.5 and MariaDB 10.11 wait with 12 to 22 KiB on their stacks, and sort with 52. Only pages that
// are written to are in memory.
#define MAX_STACK_STRIDE 65536
#define MIN_STACK_STRIDE 16384 // of many slots
#define STATS 4096
#define CELLS 128
#define CELL_STRIDE 32768
#define MAPS_STRIDE 131072
// Where all memory must be allocated at the start: 16 MB.
#define WHOLE_SLOTS 1024
#define WHOLE_STACK_STRIDE 12288
#define WHOLE_STATS 1024
#define WHOLE_CELLS 64
#define WHOLE_CELL_STRIDE 20480
#define MIN_SLOTS 16
#define MAX_TRIES 16 // of fallocate(2), which a signal interrupts

#define KEPT 4		 // rings of servers that have ended
#define MAX_ENTRIES 4096 // of the folder that are read
#define NAME 64

#define FOLDER_NAME "stallscope"

struct making {
	struct recorder_ring *ring;
	int folder; // a descriptor
	const char *directory;
	char name[64], aside[64]; // of the file, in it
	const char *what;	  // fails
};

static uint64_t whole_pages(uint64_t size)
{
	return (size + STALL_RING_PAGE - 1) & ~(uint64_t)(STALL_RING_PAGE - 1);
}

static uint32_t stack_stride(uint32_t slots)
{
	uint32_t stride = MAX_STACK_STRIDE;

	while (stride > MIN_STACK_STRIDE && (uint64_t)slots * stride > STALL_RING_MAX_FILE / 2)
		stride /= 2;
	return stride;
}

static void lay_out(struct stall_ring_header *layout, uint32_t slots, bool is_whole)
{
	uint64_t at = whole_pages(sizeof(*layout));

	layout->slot_count = slots;
	layout->stack_stride = is_whole ? WHOLE_STACK_STRIDE : stack_stride(slots);
	layout->stat_count = is_whole ? WHOLE_STATS : STATS;
	layout->cell_count = is_whole ? WHOLE_CELLS : CELLS;
	layout->cell_stride = is_whole ? WHOLE_CELL_STRIDE : CELL_STRIDE;
	layout->maps_stride = MAPS_STRIDE;
	layout->slots_offset = at;
	at += whole_pages((uint64_t)slots * sizeof(struct stall_wait_slot));
	layout->stacks_offset = at;
	at += (uint64_t)slots * layout->stack_stride;
	layout->stats_offset = at;
	at += whole_pages((uint64_t)(layout->stat_count + STALL_WAIT_KINDS) *
			  sizeof(struct stall_wait_stat));
	layout->names_offset = at;
	at += whole_pages((uint64_t)layout->stat_count * sizeof(struct stall_ring_name));
	layout->records_offset = at;
	at += (uint64_t)layout->cell_count * layout->cell_stride;
	layout->maps_offset = at;
	layout->file_size = at + 2ULL * layout->maps_stride;
}

/* Names. */

static char *put(char *to, const char *end, const char *text)
{
	while (*text && to < end - 1)
		*to++ = *text++;
	*to = '\0';
	return to;
}

static char *put_number(char *to, const char *end, uint64_t value, unsigned base)
{
	char digits[24], *at = digits + sizeof(digits);

	*--at = '\0';
	do
		*--at = "0123456789abcdef"[value % base];
	while (value /= base);
	return put(to, end, at);
}

static void name_file(struct making *making)
{
	const struct stall_ring_header *layout = &making->ring->layout;
	const char *end = making->name + sizeof(making->name);
	char *at = put_number(making->name, end, layout->pid, 10);

	at = put(at, end, "-");
	at = put_number(at, end, layout->created_ns, 16);
	strcpy(making->aside, making->name);
	put(at, end, STALL_RING_SUFFIX);
	end = making->aside + sizeof(making->aside);
	put(making->aside + (at - making->name), end, ".new");
}

/* Folders. */

static bool is_memory(int fd)
{
	struct statfs fs;

	return !raw_call2(SYS_fstatfs, fd, &fs) &&
	       (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

// A folder that others can write to may contain their links.
static bool is_ours(int fd)
{
	struct stat st;

	return !raw_call2(SYS_fstat, fd, &st) && st.st_uid == (uid_t)raw_call0(SYS_geteuid) &&
	       !(st.st_mode & 022);
}

static int open_folder(const char *path, int flags)
{
	return raw_call3(SYS_open, path, O_DIRECTORY | O_RDONLY | O_CLOEXEC | flags, 0);
}

// A folder that was not named by the user must be in memory, so that no disk can delay a write.
static int open_usual_folder(const char *path)
{
	int fd = open_folder(path, 0);

	if (fd < 0)
		return fd;
	if (is_memory(fd) && !raw_call3(SYS_faccessat, fd, ".", 3 /* W_OK | X_OK */))
		return fd;
	raw_call1(SYS_close, fd);
	return -EACCES;
}

static int make_own_folder(const char *path)
{
	raw_call2(SYS_mkdir, path, 0700);
	int fd = open_folder(path, O_NOFOLLOW);
	if (fd >= 0 && !is_ours(fd)) {
		raw_call1(SYS_close, fd);
		return -EACCES;
	}
	return fd;
}

// `path` of the ring is used for the names that are tried, and at last has that of the folder.
static int find_folder(char *path, const char *end)
{
	const struct recorder_settings *settings = recorder_settings();
	int fd;

	if (settings->directory) {
		put(path, end, settings->directory);
		return open_folder(path, 0);
	}
	put(path, end, "/run/" FOLDER_NAME);
	if ((fd = open_usual_folder(path)) >= 0)
		return fd;
	if (settings->xdg) {
		put(put(path, end, settings->xdg), end, "/" FOLDER_NAME);
		if ((fd = open_usual_folder(path)) >= 0)
			return fd;
	}
	put_number(put(path, end, "/dev/shm/" FOLDER_NAME "-"), end, raw_call0(SYS_geteuid), 10);
	return make_own_folder(path);
}

/* The file. */

static bool is_mapping(long address)
{
	return address >= 0 || address < -STALL_RING_PAGE;
}

// A file beyond the limit is a SIGXFSZ.
static uint64_t size_limit(void)
{
	struct rlimit limit;

	if (raw_call4(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit) ||
	    limit.rlim_cur > STALL_RING_MAX_FILE)
		return STALL_RING_MAX_FILE;
	return limit.rlim_cur;
}

// Not locked into memory whole where the server locks all that it maps: mlockall(2) does so as soon
// as the pages may be read.
static int map_file(struct making *making, int fd)
{
	struct recorder_ring *ring = making->ring;
	uint64_t size = ring->layout.file_size;
	long address = raw_call6(SYS_mmap, 0, size, PROT_NONE, MAP_SHARED, fd, 0);

	making->what = "mmap";
	if (!is_mapping(address))
		return -address;
	raw_call2(SYS_munlock, address, size);
	raw_call3(SYS_madvise, address, size, MADV_DONTDUMP);
	long rc = raw_call3(SYS_mprotect, address, size, PROT_READ | PROT_WRITE);
	if (rc) {
		raw_call2(SYS_munmap, address, size);
		return -rc;
	}
	ring->header = (struct stall_ring_header *)address;
	return 0;
}

static void unmap_file(struct recorder_ring *ring)
{
	if (ring->header)
		raw_call2(SYS_munmap, ring->header, ring->layout.file_size);
	ring->header = NULL;
}

static long allocate(int fd, uint64_t size)
{
	long rc = -EINTR;

	for (int i = 0; i < MAX_TRIES && rc == -EINTR; i++)
		rc = raw_call4(SYS_fallocate, fd, 0, 0, size);
	return rc;
}

// For a kernel that cannot populate memory part by part: as many slots as there is memory for now.
static int fill_whole(struct making *making, int fd)
{
	struct stall_ring_header *layout = &making->ring->layout;
	uint32_t slots = recorder_settings()->slots;
	long rc = -EFBIG;

	making->what = "fallocate";
	for (slots = slots < WHOLE_SLOTS ? slots : WHOLE_SLOTS; rc && slots >= MIN_SLOTS;
	     slots /= 2) {
		lay_out(layout, slots, true);
		if (layout->file_size > size_limit())
			continue;
		rc = allocate(fd, layout->file_size);
		if (rc)
			raw_call2(SYS_ftruncate, fd, 0);
		if (rc && rc != -ENOSPC && rc != -EDQUOT && rc != -EFBIG)
			break;
	}
	making->ring->is_whole = true;
	return rc ? -rc : map_file(making, fd);
}

static int fill_sparse(struct making *making, int fd)
{
	struct stall_ring_header *layout = &making->ring->layout;
	uint32_t slots = recorder_settings()->slots;

	making->what = "the limit of file sizes";
	for (lay_out(layout, slots, false); layout->file_size > size_limit();
	     lay_out(layout, slots, false)) {
		if ((slots /= 2) < MIN_SLOTS)
			return EFBIG;
	}
	making->what = "ftruncate";
	long rc = raw_call2(SYS_ftruncate, fd, layout->file_size);
	if (rc)
		return -rc;
	return map_file(making, fd);
}

// The parts that every reader reads are allocated at the start.
static bool has_beginnings(struct recorder_ring *ring)
{
	const struct stall_ring_header *layout = &ring->layout;

	return recorder_ring_make(ring, 0, sizeof(*layout)) &&
	       recorder_ring_make(ring, layout->slots_offset, 1) &&
	       recorder_ring_make(ring,
				  layout->stats_offset +
					  layout->stat_count * sizeof(struct stall_wait_stat),
				  STALL_WAIT_KINDS * sizeof(struct stall_wait_stat)) &&
	       recorder_ring_make(ring, layout->maps_offset, sizeof(struct stall_ring_maps)) &&
	       recorder_ring_make(ring, layout->maps_offset + layout->maps_stride,
				  sizeof(struct stall_ring_maps));
}

static bool can_populate(struct recorder_ring *ring)
{
	return raw_call3(SYS_madvise, ring->header, STALL_RING_PAGE, RECORDER_POPULATE_WRITE) !=
	       -EINVAL;
}

static int fill_file(struct making *making, int fd)
{
	struct recorder_ring *ring = making->ring;
	int errnum = fill_sparse(making, fd);

	if (errnum ? errnum == ENOMEM : !can_populate(ring)) {
		unmap_file(ring);
		raw_call2(SYS_ftruncate, fd, 0);
		errnum = fill_whole(making, fd);
	}
	if (errnum)
		return errnum;
	making->what = making->directory;
	return has_beginnings(ring) ? 0 : ENOSPC;
}

/* The header. */

static size_t read_file(const char *path, char *text, size_t size)
{
	long fd = raw_call3(SYS_open, path, O_RDONLY | O_CLOEXEC, 0);
	long n = fd < 0 ? -1 : raw_call3(SYS_read, fd, text, size - 1);

	if (fd >= 0)
		raw_call1(SYS_close, fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0 ? n : 0;
}

// Fields of /proc/PID/stat; the second, in parentheses, may have spaces and parentheses of its own.
#define START_TIME 22
#define START_STACK 28

static uint64_t stat_field(const char *text, int number)
{
	uint64_t value = 0;

	const char *at = strrchr(text, ')');
	for (int field = 2; at && field < number; field++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	for (; at && *at >= '0' && *at <= '9'; at++)
		value = value * 10 + (*at - '0');
	return value;
}

static void read_identity(struct stall_ring_header *header)
{
	char comm[32], text[512];
	struct stat st;

	read_file("/proc/self/stat", text, sizeof(text));
	memcpy(header->magic, STALL_RING_MAGIC, sizeof(header->magic));
	header->version = STALL_RING_VERSION;
	header->header_size = sizeof(*header);
	header->kinds = STALL_WAIT_KINDS;
	header->causes = STALL_LOST_CAUSES;
	header->pid = raw_call0(SYS_getpid);
	header->uid = raw_call0(SYS_geteuid);
	header->start_time = stat_field(text, START_TIME);
	header->start_stack = stat_field(text, START_STACK);
	header->pid_namespace = raw_call2(SYS_stat, "/proc/self/ns/pid", &st) ? 0 : st.st_ino;
	header->created_ns = recorder_now();
	header->created_wall_ns = recorder_clock(CLOCK_REALTIME);
	read_file("/proc/sys/kernel/random/boot_id", header->boot_id, sizeof(header->boot_id));
	header->boot_id[strcspn(header->boot_id, "\n")] = '\0';
	read_file("/proc/self/comm", comm, sizeof(comm));
	comm[strcspn(comm, "\n")] = '\0';
	put(header->comm, header->comm + sizeof(header->comm), comm);
	long n = raw_call3(SYS_readlink, "/proc/self/exe", header->exe, sizeof(header->exe) - 1);
	header->exe[n > 0 ? n : 0] = '\0';
	put(header->library, header->library + sizeof(header->library), STALL_VERSION);
}

static void write_header(struct recorder_ring *ring)
{
	const struct recorder_settings *settings = recorder_settings();
	struct stall_ring_header *header = ring->header;

	*header = ring->layout;
	header->enabled = !settings->off;
	memcpy(header->threshold_ns, settings->threshold_ns, sizeof(settings->threshold_ns));
	header->state = STALL_RING_LIVE;
}

/* Rings of servers that have ended. */

// struct linux_dirent64 of the kernel.
struct entry {
	uint64_t ino;
	int64_t off;
	uint16_t reclen;
	uint8_t type;
	char name[];
};

struct kept {
	uint64_t created_ns;
	char name[NAME];
};

struct search {
	const struct recorder_ring *ring;
	int folder;
	struct kept kept[KEPT];
	uint32_t count;
};

static bool has_suffix(const char *name, const char *suffix)
{
	size_t length = strlen(name), size = strlen(suffix);

	return length > size && !strcmp(name + length - size, suffix);
}

static pid_t pid_of(const char *name)
{
	int64_t pid = 0;

	for (; *name >= '0' && *name <= '9' && pid < INT32_MAX; name++)
		pid = pid * 10 + (*name - '0');
	return *name == '-' && pid < INT32_MAX ? pid : 0;
}

static bool read_header(const struct search *search, const char *name,
			struct stall_ring_header *ret)
{
	long fd = raw_call4(SYS_openat, search->folder, name,
			    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);

	if (fd < 0)
		return false;
	long n = raw_call4(SYS_pread64, fd, ret, STALL_RING_HEADER_1, 0);
	raw_call1(SYS_close, fd);
	return n == STALL_RING_HEADER_1 &&
	       !memcmp(ret->magic, STALL_RING_MAGIC, sizeof(ret->magic)) && ret->version >= 1 &&
	       ret->version <= STALL_RING_VERSION;
}

// Another pid namespace may share the folder: its pids are not known here.
static bool is_dead(const struct search *search, const char *name,
		    const struct stall_ring_header *header)
{
	const struct stall_ring_header *own = &search->ring->layout;

	return header->uid == own->uid && header->pid == pid_of(name) && header->pid > 0 &&
	       own->pid_namespace && header->pid_namespace == own->pid_namespace &&
	       !memcmp(header->boot_id, own->boot_id, sizeof(own->boot_id)) &&
	       raw_call2(SYS_kill, header->pid, 0) == -ESRCH;
}

// Keeps the latest, and removes the oldest of those and this one when there are too many.
static void add(struct search *search, const char *name, uint64_t created_ns)
{
	struct kept *oldest = &search->kept[0];

	if (search->count < KEPT) {
		oldest = &search->kept[search->count++];
	} else {
		for (uint32_t i = 1; i < KEPT; i++) {
			if (search->kept[i].created_ns < oldest->created_ns)
				oldest = &search->kept[i];
		}
		bool is_older = created_ns < oldest->created_ns;
		raw_call3(SYS_unlinkat, search->folder, is_older ? name : oldest->name, 0);
		if (is_older)
			return;
	}
	strcpy(oldest->name, name);
	oldest->created_ns = created_ns;
}

static void consider(struct search *search, const char *name)
{
	struct stall_ring_header header;

	if (!pid_of(name) || strlen(name) >= NAME || !has_suffix(name, STALL_RING_SUFFIX))
		return;
	if (read_header(search, name, &header) && is_dead(search, name, &header))
		add(search, name, header.created_ns);
}

// Only the latest stay: a server that dies each time it is started would fill the memory.
static void remove_stale(const struct recorder_ring *ring, int folder)
{
	struct search search = {.ring = ring, .folder = folder};
	static char buffer[4096] __attribute__((aligned(8))); // one thread makes the ring
	uint32_t entries = 0;
	long n;

	while ((n = raw_call3(SYS_getdents64, folder, buffer, sizeof(buffer))) > 0) {
		for (long at = 0; at < n && entries < MAX_ENTRIES; entries++) {
			const struct entry *entry = (const struct entry *)(buffer + at);
			consider(&search, entry->name);
			at += entry->reclen;
		}
		if (entries == MAX_ENTRIES)
			break;
	}
}

/* All of it. */

static int publish(struct making *making)
{
	int folder = making->folder;

	making->what = making->directory;
	long rc = raw_call5(SYS_linkat, folder, making->aside, folder, making->name, 0);
	// File systems without links: the name is of this process and this moment alone.
	if (rc == -EPERM || rc == -EOPNOTSUPP || rc == -EMLINK)
		return -raw_call4(SYS_renameat, folder, making->aside, folder, making->name);
	raw_call3(SYS_unlinkat, folder, making->aside, 0);
	return -rc;
}

static int make_file(struct making *making)
{
	long fd = raw_call4(SYS_openat, making->folder, making->aside,
			    O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

	making->what = making->directory;
	if (fd < 0)
		return -fd;
	raw_call2(SYS_fchmod, fd, 0600); // whatever the umask says
	int errnum = fill_file(making, fd);
	raw_call1(SYS_close, fd);
	if (!errnum) {
		write_header(making->ring);
		errnum = publish(making);
	}
	if (errnum) {
		raw_call3(SYS_unlinkat, making->folder, making->aside, 0);
		unmap_file(making->ring);
	}
	return errnum;
}

int recorder_create(struct recorder_ring *ring, const char **ret_what)
{
	const char *end = ring->path + sizeof(ring->path);
	struct making making = {.ring = ring, .directory = ring->path};

	read_identity(&ring->layout);
	making.folder = find_folder(ring->path, end);
	if (making.folder < 0) {
		*ret_what = ring->path;
		return -making.folder;
	}
	name_file(&making);
	int errnum = make_file(&making);
	if (!errnum)
		remove_stale(ring, making.folder);
	raw_call1(SYS_close, making.folder);
	if (errnum) {
		*ret_what = making.what;
		return errnum;
	}
	put(put(ring->path + strlen(ring->path), end, "/"), end, making.name);
	return 0;
}

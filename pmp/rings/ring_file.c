// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "inproc/ring.h"
#include "proc/path_open.h"
#include "proc/path_status.h"

#define MAX_RINGS 4096 // as many as there can be --pid

// A mapping of a file that another process may cut at any time. Reading a page that the file does
// not have any more raises SIGBUS (mmap(2)); the handler replaces such pages by zeros, and the
// mapping remembers that. The handler searches these: `start` is written last, and cleared first.
struct guarded {
	uintptr_t start, end;
	int fd;
	bool cut;
};
static struct guarded guarded[MAX_RINGS];
static struct sigaction before; // the action of SIGBUS until the first mapping

static struct guarded *find(uintptr_t address)
{
	for (size_t i = 0; i < MAX_RINGS; i++) {
		uintptr_t start = __atomic_load_n(&guarded[i].start, __ATOMIC_ACQUIRE);

		if (start && start <= address && address < guarded[i].end)
			return &guarded[i];
	}
	return NULL;
}

// A file that was cut has nothing behind its end; a hole in a file on a full disk is one page.
static bool replace(const struct guarded *map, uintptr_t address)
{
	uintptr_t page = address & ~(uintptr_t)(STALL_RING_PAGE - 1);
	struct stall_path_status status;
	bool cut = !stall_fd_status(map->fd, &status) || status.size < map->end - map->start;
	size_t size = cut ? map->end - page : STALL_RING_PAGE;

	return mmap((void *)page, size, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

// Makes only system calls: it may run within any function.
static void on_bus_error(int signal, siginfo_t *info, void *context)
{
	int errnum = errno;
	struct guarded *map = info->si_code == BUS_ADRERR ? find((uintptr_t)info->si_addr) : NULL;

	if (map && replace(map, (uintptr_t)info->si_addr))
		map->cut = true;
	else
		sigaction(SIGBUS, &before, NULL); // it is raised again, by the same instruction
	errno = errnum;
}

static struct stall_error *install_handler(void)
{
	static bool installed;
	struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};

	if (installed)
		return NULL;
	if (sigaction(SIGBUS, &action, &before) < 0)
		return stall_error_os(errno, "cannot handle SIGBUS");
	installed = true;
	return NULL;
}

static struct guarded *find_free(void)
{
	for (size_t i = 0; i < MAX_RINGS; i++) {
		if (!guarded[i].start)
			return &guarded[i];
	}
	return NULL;
}

// `fd` must stay open as long as the mapping. Forked children do not have the mapping.
static struct stall_error *map_file(int fd, size_t size, bool writable, void **ret)
{
	struct guarded *map = find_free();
	struct stall_error *err = install_handler();

	if (err)
		return err;
	if (!map)
		return stall_error_create(STALL_ERROR_LIMIT, "more than %d rings at a time",
					  MAX_RINGS);
	void *base =
		mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return stall_error_os(errno, "mmap");
	madvise(base, size, MADV_DONTFORK);
	*map = (struct guarded){.end = (uintptr_t)base + size, .fd = fd};
	__atomic_store_n(&map->start, (uintptr_t)base, __ATOMIC_RELEASE);
	*ret = base;
	return NULL;
}

static void unmap(void *base, size_t size)
{
	struct guarded *map = find((uintptr_t)base);

	munmap(base, size);
	if (map)
		__atomic_store_n(&map->start, 0, __ATOMIC_RELEASE);
}

// Whether a page of it was missing.
static bool map_was_cut(const void *base)
{
	const struct guarded *map = find((uintptr_t)base);

	return map && __atomic_load_n(&map->cut, __ATOMIC_RELAXED);
}

#define MAX_STRIDE (16U << 20)
#define COPY_TRIES 4 // of what changes meanwhile
#define PENDING_NS UINT64_C(1000000000)

struct stall_ring {
	char *path;
	int fd;
	uid_t owner;
	bool writable;
	uint8_t *base;
	struct stall_ring_header header; // our copy, the only one that is used
	// The record that was being written at the last read, and since when.
	uint64_t pending, pending_ns;
};

void stall_ring_close(struct stall_ring *ring)
{
	if (!ring)
		return;
	if (ring->base)
		unmap(ring->base, ring->header.file_size);
	if (ring->fd >= 0)
		close(ring->fd);
	free(ring->path);
	free(ring);
}

// Parts must be in the order of the header, so that they do not overlap.
struct layout {
	uint64_t end, file_size;
	bool bad;
};

static void place(struct layout *layout, uint64_t offset, uint64_t count, uint64_t stride)
{
	uint64_t size, end;

	if (offset < layout->end || offset % STALL_RING_PAGE ||
	    __builtin_mul_overflow(count, stride, &size) ||
	    __builtin_add_overflow(offset, size, &end) || end > layout->file_size)
		layout->bad = true;
	else
		layout->end = end;
}

static bool is_power_of_two(uint32_t value)
{
	return value && !(value & (value - 1));
}

static bool is_stride(uint32_t stride, size_t least)
{
	return stride >= least && stride <= MAX_STRIDE && stride % 8 == 0;
}

static const char *find_fault(const struct stall_ring_header *header, uint64_t size)
{
	size_t header_size = header->version == 1 ? STALL_RING_HEADER_1 : sizeof(*header);
	struct layout layout = {.end = header_size, .file_size = size};

	if (header->header_size != header_size)
		return "its header has another size";
	if (header->file_size != size)
		return header->file_size > size ? "it was cut" : "it is longer than it says";
	if (!header->slot_count || header->slot_count > STALL_RING_MAX_SLOTS ||
	    header->stat_count > STALL_RING_MAX_STATS || !is_power_of_two(header->stat_count) ||
	    header->cell_count > STALL_RING_MAX_CELLS || !is_power_of_two(header->cell_count) ||
	    header->kinds > STALL_RING_MAX_KINDS || header->causes > STALL_RING_MAX_CAUSES)
		return "it has an impossible number of slots, stats or records";
	if (!is_stride(header->stack_stride, sizeof(struct stall_ring_stack)) ||
	    !is_stride(header->cell_stride, sizeof(struct stall_ring_cell)) ||
	    !is_stride(header->maps_stride, sizeof(struct stall_ring_maps)))
		return "it has stacks, records or maps of an impossible size";
	place(&layout, header->slots_offset, header->slot_count, sizeof(struct stall_wait_slot));
	place(&layout, header->stacks_offset, header->slot_count, header->stack_stride);
	place(&layout, header->stats_offset, header->stat_count + header->kinds,
	      sizeof(struct stall_wait_stat));
	place(&layout, header->names_offset, header->stat_count, sizeof(struct stall_ring_name));
	place(&layout, header->records_offset, header->cell_count, header->cell_stride);
	place(&layout, header->maps_offset, 2, header->maps_stride);
	if (layout.bad)
		return "its parts do not fit into it";
	if (header->created_ns > STALL_RING_MAX_TIME ||
	    header->created_wall_ns > STALL_RING_MAX_TIME ||
	    header->start_time > STALL_RING_MAX_TIME)
		return "it was made at an impossible time";
	return header->pid > 0 ? NULL : "it names no process";
}

#define END_STRING(text) ((text)[sizeof(text) - 1] = '\0')

static struct stall_error *read_header(struct stall_ring *ring, uint64_t size)
{
	struct stall_ring_header *header = &ring->header;

	// One of version 1 is shorter, but the file is not.
	if (pread(ring->fd, header, sizeof(*header), 0) != sizeof(*header) ||
	    memcmp(header->magic, STALL_RING_MAGIC, sizeof(header->magic)))
		return stall_error_create(STALL_ERROR_FORMAT, "%s: not a ring of libstallscope.so",
					  ring->path);
	if (header->version < 1 || header->version > STALL_RING_VERSION)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"%s: a ring of version %u; take the stallscope that libstallscope.so came "
			"with, this one reads versions up to %u",
			ring->path, header->version, STALL_RING_VERSION);
	if (size > STALL_RING_MAX_FILE)
		return stall_error_create(STALL_ERROR_LIMIT,
					  "%s: a ring of %" PRIu64 " bytes, the limit is %llu",
					  ring->path, size, STALL_RING_MAX_FILE);
	if (header->version == 1) {
		header->kinds = STALL_RING_KINDS_1;
		header->causes = STALL_RING_CAUSES_1;
	}
	const char *fault = find_fault(header, size);
	if (fault)
		return stall_error_create(STALL_ERROR_FORMAT, "%s: no ring to be read: %s",
					  ring->path, fault);
	END_STRING(header->boot_id);
	END_STRING(header->comm);
	END_STRING(header->exe);
	END_STRING(header->library);
	return NULL;
}

// Takes the descriptor over.
static struct stall_error *create(int fd, const char *path, bool writable, struct stall_ring **ret)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = calloc(1, sizeof(*ring));
	struct stall_path_status status;
	void *base = NULL;

	if (!ring) {
		close(fd);
		return &stall_enomem;
	}
	ring->fd = fd;
	ring->writable = writable;
	ring->path = strdup(path);
	if (!ring->path)
		return &stall_enomem;
	if (!stall_fd_status(fd, &status))
		return stall_error_os(errno, "%s", path);
	ring->owner = status.uid;
	struct stall_error *err = read_header(ring, status.size);
	if (!err)
		err = map_file(fd, ring->header.file_size, writable, &base);
	if (err)
		return err;
	ring->base = base;
	*ret = no_cleanup_ptr(ring);
	return NULL;
}

// Root that gave up CAP_DAC_OVERRIDE (privileges.c) opens the ring of another user for writing as
// that user. The descriptor, or -1.
static int reopen_writable(int fd, uid_t owner)
{
	uid_t self = geteuid();
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (self == 0 && owner != self)
		setfsuid(owner);
	// Its owner may hold a lease, which would keep us waiting (fcntl(2), F_SETLEASE).
	int writable = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	setfsuid(self);
	return writable;
}

struct stall_error *stall_ring_open_fd(int fd, const char *path, struct stall_ring **ret)
{
	return create(fd, path, false, ret);
}

struct stall_error *stall_ring_open_at(int folder, const char *name, const char *path,
				       bool writable, struct stall_ring **ret)
{
	const struct stall_path where = {.folder = folder, .name = name};
	struct stall_path_status status;
	int fd;
	struct stall_error *err =
		stall_path_open(&where, STALL_PATH_READ | STALL_PATH_NOFOLLOW | STALL_PATH_TO_MAP,
				&fd, &status);

	if (err && (err->errnum == EACCES || err->errnum == EPERM)) {
		int errnum = err->errnum;

		stall_error_destroy(err);
		return stall_error_os(errnum,
				      "%s: cannot open the ring (be the user that the server ran "
				      "as when it made it, or root)",
				      path);
	}
	if (err)
		return err;
	// What is mapped is read at any time, also while nobody can be asked.
	if (!stall_path_is_local(&status)) {
		close(fd);
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"%s: a ring on a file system of a network or of a program is not read: it "
			"may not answer",
			path);
	}
	int own = writable ? reopen_writable(fd, status.uid) : -1;
	if (own < 0)
		return create(fd, path, false, ret);
	close(fd);
	return create(own, path, true, ret);
}

struct stall_error *stall_ring_open(const char *path, bool writable, struct stall_ring **ret)
{
	return stall_ring_open_at(AT_FDCWD, path, path, writable, ret);
}

bool stall_ring_is_writable(const struct stall_ring *ring)
{
	return ring->writable;
}

bool stall_ring_was_cut(const struct stall_ring *ring)
{
	struct stall_path_status status;

	return map_was_cut(ring->base) || !stall_fd_status(ring->fd, &status) ||
	       status.size < ring->header.file_size;
}

const char *stall_ring_path(const struct stall_ring *ring)
{
	return ring->path;
}

int stall_ring_fd(const struct stall_ring *ring)
{
	return ring->fd;
}

uid_t stall_ring_owner(const struct stall_ring *ring)
{
	return ring->owner;
}

const struct stall_ring_header *stall_ring_header(const struct stall_ring *ring)
{
	return &ring->header;
}

volatile struct stall_ring_header *stall_ring_live(const struct stall_ring *ring)
{
	return (volatile struct stall_ring_header *)ring->base;
}

uint32_t stall_ring_kinds(const struct stall_ring *ring)
{
	return ring->header.kinds < STALL_WAIT_KINDS ? ring->header.kinds : STALL_WAIT_KINDS;
}

static volatile __u64 *threshold_at(const struct stall_ring *ring, uint32_t kind)
{
	volatile struct stall_ring_header *live = stall_ring_live(ring);

	if (kind >= ring->header.kinds)
		return NULL;
	return ring->header.version == 1 ? &live->threshold_ns_1[kind] : &live->threshold_ns[kind];
}

uint64_t stall_ring_threshold(const struct stall_ring *ring, uint32_t kind)
{
	const volatile __u64 *word = threshold_at(ring, kind);

	return word ? *word : UINT64_MAX;
}

void stall_ring_set_threshold(const struct stall_ring *ring, uint32_t kind, uint64_t ns)
{
	volatile __u64 *word = threshold_at(ring, kind);

	if (word)
		*word = ns;
}

uint64_t stall_ring_lost(const struct stall_ring *ring, uint32_t cause)
{
	const volatile struct stall_ring_header *live = stall_ring_live(ring);

	if (cause >= ring->header.causes)
		return 0;
	return ring->header.version == 1 ? live->lost_1[cause] : live->lost[cause];
}

uint64_t stall_ring_next_data(const struct stall_ring *ring, uint64_t offset)
{
	off_t next = lseek(ring->fd, (off_t)offset, SEEK_DATA);

	if (next < 0) // ENXIO; any other error: not known for this filesystem
		return errno == ENXIO ? UINT64_MAX : offset;
	return (uint64_t)next;
}

static const struct stall_wait_slot *slot_at(const struct stall_ring *ring, size_t slot)
{
	return (const struct stall_wait_slot *)(ring->base + ring->header.slots_offset) + slot;
}

const volatile struct stall_wait_slot *stall_ring_slots(const struct stall_ring *ring,
							size_t *ret_count)
{
	uint32_t used = __atomic_load_n(&stall_ring_live(ring)->slots_used, __ATOMIC_ACQUIRE);

	*ret_count = used < ring->header.slot_count ? used : ring->header.slot_count;
	return slot_at(ring, 0);
}

volatile struct stall_wait_stat *stall_ring_stats(const struct stall_ring *ring, size_t *ret_count)
{
	*ret_count = ring->header.stat_count;
	return (volatile struct stall_wait_stat *)(ring->base + ring->header.stats_offset);
}

// Copies once: only the copy is used afterwards.
static void copy_out(void *ret, const void *from, size_t size)
{
	memcpy(ret, from, size);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

static uint32_t load32(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static uint64_t load64(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

bool stall_ring_read_slot(const struct stall_ring *ring, size_t slot, struct stall_wait_slot *ret)
{
	const struct stall_wait_slot *from = slot_at(ring, slot);

	if (slot >= ring->header.slot_count)
		return false;
	for (int i = 0; i < COPY_TRIES; i++) {
		uint32_t seq = load32(&from->seq);
		struct stall_wait_slot copy;

		copy_out(&copy, from, sizeof(copy));
		if (load32(&from->seq) != seq || copy.seq != seq)
			continue;
		END_STRING(copy.comm);
		*ret = copy;
		return true;
	}
	return false;
}

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

size_t stall_ring_max_stack(const struct stall_ring *ring)
{
	return ring->header.stack_stride - sizeof(struct stall_ring_stack);
}

bool stall_ring_read_stack(const struct stall_ring *ring, size_t slot, uint32_t seq,
			   struct stall_ring_stack_copy *ret, uint8_t *stack, size_t room)
{
	if (slot >= ring->header.slot_count)
		return false;
	const struct stall_ring_stack *from =
		(const void *)(ring->base + ring->header.stacks_offset +
			       slot * (size_t)ring->header.stack_stride);
	for (int i = 0; i < COPY_TRIES; i++) {
		struct stall_ring_stack copy;

		if (load32(&from->seq) != seq || load32(&slot_at(ring, slot)->seq) != seq)
			return false;
		copy_out(&copy, from, sizeof(copy));
		size_t size = min_size(min_size(copy.size, stall_ring_max_stack(ring)), room);
		copy_out(stack, from->bytes, size);
		if (load32(&from->seq) != seq || load32(&slot_at(ring, slot)->seq) != seq)
			return false;
		if (load64(&from->words_ns) != copy.words_ns) // the thread has read the words again
			continue;
		*ret = (struct stall_ring_stack_copy){
			.size = (uint32_t)size,
			.address = copy.address,
			.whole = copy.whole,
			.fs_base = copy.fs_base,
			.words_ns = copy.words_ns,
		};
		memcpy(ret->words, copy.words, sizeof(ret->words));
		memcpy(ret->regs, copy.regs, sizeof(ret->regs));
		return true;
	}
	return false;
}

bool stall_ring_read_name(const struct stall_ring *ring, size_t stat, uint64_t tag,
			  struct stall_ring_name *ret)
{
	struct stall_ring_name copy;

	if (stat >= ring->header.stat_count)
		return false;
	const struct stall_ring_name *from =
		(const struct stall_ring_name *)(ring->base + ring->header.names_offset) + stat;
	if (load64(&from->tag) != tag)
		return false;
	copy_out(&copy, from, sizeof(copy));
	if (load64(&from->tag) != tag || copy.tag != tag)
		return false;
	END_STRING(copy.path);
	*ret = copy;
	return true;
}

static const struct stall_ring_cell *cell_at(const struct stall_ring *ring, uint64_t number)
{
	size_t cell = number & (ring->header.cell_count - 1);

	return (const void *)(ring->base + ring->header.records_offset +
			      cell * ring->header.cell_stride);
}

size_t stall_ring_max_record_stack(const struct stall_ring *ring)
{
	return ring->header.cell_stride - sizeof(struct stall_ring_cell);
}

static bool copy_record(const struct stall_ring *ring, uint64_t number,
			struct stall_ring_record_copy *ret, uint8_t *stack, size_t room)
{
	const struct stall_ring_cell *from = cell_at(ring, number);
	struct stall_ring_cell cell;

	copy_out(&cell, from, sizeof(cell));
	size_t size =
		min_size(min_size(cell.record.stack_size, stall_ring_max_record_stack(ring)), room);
	copy_out(stack, from->stack, size);
	if (load64(&from->ticket) != 2 * number + 2 || cell.ticket != 2 * number + 2 ||
	    cell.record.magic != STALL_BPF_MAGIC)
		return false;
	ret->record = cell.record;
	ret->record.stack_size = (uint32_t)size;
	END_STRING(ret->record.comm);
	ret->whole = cell.whole;
	memcpy(ret->words, cell.words, sizeof(ret->words));
	return true;
}

// Whether the record can still come: a writer has taken its number, and may not be stuck.
static bool is_awaited(struct stall_ring *ring, uint64_t number)
{
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);

	if (ring->pending != number + 1) {
		ring->pending = number + 1;
		ring->pending_ns = now;
	}
	return now - ring->pending_ns < PENDING_NS;
}

// At most as many steps as there are cells, whatever `head` says.
bool stall_ring_next_record(struct stall_ring *ring, uint64_t *cursor, uint64_t *ret_lost,
			    struct stall_ring_record_copy *ret, uint8_t *stack, size_t room)
{
	uint64_t head = __atomic_load_n(&stall_ring_live(ring)->head, __ATOMIC_ACQUIRE);
	uint64_t count = ring->header.cell_count;

	if (head > count && *cursor < head - count) {
		if (*cursor)
			*ret_lost += head - count - *cursor;
		*cursor = head - count;
	}
	while (*cursor < head) {
		uint64_t ticket = load64(&cell_at(ring, *cursor)->ticket);

		if (ticket < 2 * *cursor + 2 && is_awaited(ring, *cursor))
			return false;
		bool copied =
			ticket == 2 * *cursor + 2 && copy_record(ring, *cursor, ret, stack, room);
		if (!copied && ticket >= 2 * *cursor + 2)
			++*ret_lost;
		++*cursor;
		if (copied)
			return true;
	}
	return false;
}

static char *copy_maps(const struct stall_ring *ring, uint64_t *ret_read_ns, bool *ret_truncated,
		       bool *ret_changed)
{
	uint32_t which = __atomic_load_n(&stall_ring_live(ring)->maps, __ATOMIC_ACQUIRE) & 1;
	const struct stall_ring_maps *from =
		(const void *)(ring->base + ring->header.maps_offset +
			       which * (size_t)ring->header.maps_stride);
	struct stall_ring_maps head;

	copy_out(&head, from, sizeof(head));
	size_t size = min_size(head.size, ring->header.maps_stride - sizeof(head));
	char *text = malloc(size + 1);
	if (!text)
		return NULL;
	copy_out(text, from->text, size);
	text[size] = '\0';
	*ret_changed =
		(__atomic_load_n(&stall_ring_live(ring)->maps, __ATOMIC_ACQUIRE) & 1) != which ||
		load64(&from->read_ns) != head.read_ns;
	*ret_read_ns = head.read_ns;
	*ret_truncated = head.truncated;
	return text;
}

struct stall_error *stall_ring_read_maps(const struct stall_ring *ring, char **ret,
					 uint64_t *ret_read_ns, bool *ret_truncated)
{
	for (int i = 0; i < COPY_TRIES; i++) {
		uint64_t read_ns;
		bool truncated, changed;
		char *text = copy_maps(ring, &read_ns, &truncated, &changed);

		if (!text)
			return &stall_enomem;
		if (changed) {
			free(text);
			continue;
		}
		*ret = text;
		*ret_read_ns = read_ns;
		*ret_truncated = truncated;
		return NULL;
	}
	return stall_error_create(STALL_ERROR_AGAIN, "%s: its list of files changes all the time",
				  ring->path);
}

// SPDX-License-Identifier: Apache-2.0
// Rings that dead servers left behind.
#include <dirent.h>
#include <fcntl.h>
#include <string.h>

#include "inproc/recorder_private.h"

#define KEPT 4
#define MAX_ENTRIES 4096 // of the folder
#define NAME 64

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
	long n = raw_call4(SYS_pread64, fd, ret, sizeof(*ret), 0);
	raw_call1(SYS_close, fd);
	return n == sizeof(*ret) && !memcmp(ret->magic, STALL_RING_MAGIC, sizeof(ret->magic)) &&
	       ret->version == STALL_RING_VERSION;
}

// Another pid namespace may share the folder: of its pids nothing is known.
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

static void look_at(struct search *search, const char *name)
{
	struct stall_ring_header header;

	if (!pid_of(name) || strlen(name) >= NAME || !has_suffix(name, STALL_RING_SUFFIX))
		return;
	if (read_header(search, name, &header) && is_dead(search, name, &header))
		add(search, name, header.created_ns);
}

void recorder_remove_stale(const struct recorder_ring *ring, int folder)
{
	struct search search = {.ring = ring, .folder = folder};
	static char buffer[4096] __attribute__((aligned(8))); // one thread makes the ring
	uint32_t entries = 0;
	long n;

	while ((n = raw_call3(SYS_getdents64, folder, buffer, sizeof(buffer))) > 0) {
		for (long at = 0; at < n && entries < MAX_ENTRIES; entries++) {
			const struct entry *entry = (const struct entry *)(buffer + at);
			look_at(&search, entry->name);
			at += entry->reclen;
		}
		if (entries == MAX_ENTRIES)
			break;
	}
}

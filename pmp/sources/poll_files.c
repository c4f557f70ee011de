// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define MAX_MOUNTINFO (1 << 20)
#define MAX_MOUNTS 8192
#define READ_AGAIN_NS UINT64_C(1000000000)
#define MAX_TYPE 32
#define KERNEL_MINOR_BITS 20 // include/linux/kdev_t.h

void stall_poll_mounts_deinit(struct stall_poll_mounts *mounts)
{
	free(mounts->mounts);
	*mounts = (struct stall_poll_mounts){};
}

// Those of which it is known. stat(2) on a network's, a cluster's or a user's may wait for another
// program or another host.
static bool is_local_type(const char *type)
{
	static const char *const local[] = {"bcachefs", "btrfs",     "devtmpfs", "exfat",
					    "ext2",	"ext3",	     "ext4",	 "f2fs",
					    "hfsplus",	"hugetlbfs", "iso9660",	 "jfs",
					    "nilfs2",	"ramfs",     "reiserfs", "rootfs",
					    "squashfs", "tmpfs",     "udf",	 "vfat",
					    "xfs"};

	for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
		if (!strcmp(local[i], type))
			return true;
	return false;
}

// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
static bool parse_mount(const char *line, struct stall_poll_mount *ret)
{
	const char *dash = strstr(line, " - ");
	char type[MAX_TYPE];

	if (!dash || sscanf(line, "%d ", &ret->id) != 1 || sscanf(dash + 3, "%31s", type) != 1)
		return false;
	ret->is_local = is_local_type(type);
	return true;
}

bool stall_poll_mounts_parse(struct stall_poll_mounts *mounts, char *text)
{
	struct stall_poll_mount *found = NULL;
	size_t count = 0, capacity = 0;
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line && count < MAX_MOUNTS;
	     line = strtok_r(NULL, "\n", &rest)) {
		if (count == capacity) {
			capacity = capacity ? 2 * capacity : 64;
			struct stall_poll_mount *grown =
				reallocarray(found, capacity, sizeof(*grown));
			if (!grown) {
				free(found);
				return false;
			}
			found = grown;
		}
		count += parse_mount(line, &found[count]);
	}
	free(mounts->mounts);
	mounts->mounts = found;
	mounts->count = count;
	return true;
}

static void read_mounts(const struct stall_target *target, struct stall_poll_mounts *mounts)
{
	_cleanup_close_ int fd = openat(target->procfd, "mountinfo", O_RDONLY | O_CLOEXEC);
	_cleanup_free_ char *text = fd < 0 ? NULL : malloc(MAX_MOUNTINFO + 1);
	size_t used = 0;
	ssize_t got = 1;

	mounts->read_ns = stall_clock_ns(CLOCK_MONOTONIC);
	if (!text)
		return;
	while (used < MAX_MOUNTINFO && got > 0) {
		got = read(fd, text + used, MAX_MOUNTINFO - used);
		if (got > 0)
			used += got;
	}
	text[used] = '\0';
	stall_poll_mounts_parse(mounts, text);
}

static const struct stall_poll_mount *find_mount(const struct stall_poll_mounts *mounts, int id)
{
	for (size_t i = 0; i < mounts->count; i++)
		if (mounts->mounts[i].id == id)
			return &mounts->mounts[i];
	return NULL;
}

static bool is_on_local(const struct stall_target *target, struct stall_poll_mounts *mounts, int fd)
{
	char path[32], text[512];
	int id;

	snprintf(path, sizeof(path), "fdinfo/%d", fd);
	_cleanup_close_ int info = openat(target->procfd, path, O_RDONLY | O_CLOEXEC);
	ssize_t got = info < 0 ? -1 : read(info, text, sizeof(text) - 1);
	if (got <= 0)
		return false;
	text[got] = '\0';
	const char *line = strstr(text, "mnt_id:");
	if (!line || sscanf(line, "mnt_id: %d", &id) != 1)
		return false;
	const struct stall_poll_mount *mount = find_mount(mounts, id);
	if (!mount && stall_clock_ns(CLOCK_MONOTONIC) - mounts->read_ns >= READ_AGAIN_NS) {
		read_mounts(target, mounts);
		mount = find_mount(mounts, id);
	}
	return mount && mount->is_local;
}

void stall_poll_path_cut(const char *path, char ret[STALL_PATH])
{
	size_t length = strlen(path);

	memset(ret, 0, STALL_PATH);
	if (length < STALL_PATH) {
		memcpy(ret, path, length);
		return;
	}
	const char *end = strchr(path + length - (STALL_PATH - 4), '/');
	snprintf(ret, STALL_PATH, "...%s", end ? end : "/");
}

bool stall_poll_file_find(const struct stall_target *target, struct stall_poll_mounts *mounts,
			  int fd, struct stall_poll_file *ret)
{
	char link[32], path[PATH_MAX], root[PATH_MAX];
	struct statx status;

	if (fd < 0)
		return false;
	snprintf(link, sizeof(link), "fd/%d", fd);
	ssize_t length = readlinkat(target->procfd, link, path, sizeof(path) - 1);
	if (length <= 0 || path[0] != '/')
		return false;
	path[length] = '\0';
	stall_target_root(target, root, sizeof(root));
	*ret = (struct stall_poll_file){.is_local = is_on_local(target, mounts, fd)};
	stall_poll_path_cut(stall_path_in_root(path, root), ret->path);
	if (!ret->is_local)
		return true;
	if (statx(target->procfd, link, AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &status) < 0)
		return false;
	ret->dev = (uint64_t)status.stx_dev_major << KERNEL_MINOR_BITS | status.stx_dev_minor;
	ret->ino = status.stx_ino;
	ret->size = status.stx_size;
	ret->mode = status.stx_mode;
	return true;
}

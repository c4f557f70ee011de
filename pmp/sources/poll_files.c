// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_files.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "proc/descriptors.h"
#include "proc/proc_file.h"

#define KERNEL_MINOR_BITS 20 // include/linux/kdev_t.h

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

bool stall_poll_file_find(const struct stall_target *target, int fd, struct stall_poll_file *ret)
{
	char link[32], path[PATH_MAX + 16];
	struct stall_descriptor descriptor;

	*ret = (struct stall_poll_file){};
	if (fd < 0)
		return false;
	if (stall_descriptor_read(target, fd, &descriptor, path, sizeof(path))) {
		ret->is_known = true;
		ret->dev = (uint64_t)major(descriptor.status.dev) << KERNEL_MINOR_BITS |
			   minor(descriptor.status.dev);
		ret->ino = descriptor.status.ino;
		ret->size = descriptor.status.size;
		ret->mode = descriptor.status.mode;
	} else {
		// Its disk does not answer; the name does not come from there.
		snprintf(link, sizeof(link), "fd/%d", fd);
		if (!stall_proc_link_inside(target, link, path, sizeof(path)) || path[0] != '/')
			return false;
	}
	stall_poll_path_cut(path, ret->path);
	return true;
}

// SPDX-License-Identifier: Apache-2.0
// How a path is opened, and what is known of what it leads to.
#ifndef STALL_PATH_STATUS_H
#define STALL_PATH_STATUS_H

#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>

#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546 // Linux 5.15
#endif

enum stall_path_how {
	STALL_PATH_STATUS,	 // its status alone
	STALL_PATH_READ,	 // for reading: a regular file alone
	STALL_PATH_FOLDER,	 // to list it
	STALL_PATH_HOW = 7,	 // the bits of one of those
	STALL_PATH_NOFOLLOW = 8, // the last name may not be a link
	// That any user may read, or a program: who names it shall not have it read by us.
	STALL_PATH_PUBLIC = 16,
	STALL_PATH_QUIET =
		32, // does not change the time of its last access, where that is possible
	STALL_PATH_TRUSTED = 64, // that nobody else can change (base/trust.h)
	STALL_PATH_NAME = 128,	 // and what its path is without links
	// With O_PATH alone where a close(2) of what is open for reading may wait (stall_path_pass()).
	STALL_PATH_NO_WAIT = 256,
	STALL_PATH_TO_MAP = 512, // but for reading on an overlay: its pages may wait as well
};

// What is to be done with an open file; `arg` is its own. Returns an errno.
typedef int (*stall_path_work_fn)(int fd, void *arg);

// As of statx(2), which asks no server of a network. Of a link of /proc/PID/fd, what it leads to.
struct stall_path_status {
	uint64_t dev, ino, size;
	uint64_t allocated; // bytes on the disk
	uint64_t mtime_ns;
	uint64_t filesystem; // f_type of statfs(2); 0: not asked for
	uint32_t mode, nlink, uid, gid;
	uint32_t link_mode; // of a descriptor: of the link, which says how it was opened
};

// Returns an errno; `flags` as of statx(2). Only the reading child follows paths.
int stall_path_status_read(int folder, const char *path, int flags, struct stall_path_status *ret);
// Of an open file, as it is known here: a server that does not answer is not asked.
bool stall_fd_status(int fd, struct stall_path_status *ret);

// Whether its file system is of this host: neither a network's nor one of a program, which may never
// answer. `filesystem` is known.
bool stall_path_is_local(const struct stall_path_status *status);

#endif

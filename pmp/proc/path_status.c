// SPDX-License-Identifier: Apache-2.0
#include "proc/path_status.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

// Of file systems that linux/magic.h does not have.
#define ZFS_MAGIC 0x2fc12fc1
#define BCACHEFS_MAGIC 0xca451a4e

int stall_path_status_read(int folder, const char *path, int flags, struct stall_path_status *ret)
{
	struct statx status;

	if (statx(folder, path, flags | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_BASIC_STATS,
		  &status) < 0)
		return errno;
	*ret = (struct stall_path_status){
		.dev = makedev(status.stx_dev_major, status.stx_dev_minor),
		.ino = status.stx_ino,
		.size = status.stx_size,
		.allocated = status.stx_blocks * 512,
		.mtime_ns = (uint64_t)status.stx_mtime.tv_sec * UINT64_C(1000000000) +
			    status.stx_mtime.tv_nsec,
		.mode = status.stx_mode,
		.nlink = status.stx_nlink,
		.uid = status.stx_uid,
		.gid = status.stx_gid,
	};
	return 0;
}

bool stall_fd_status(int fd, struct stall_path_status *ret)
{
	return stall_path_status_read(fd, "", AT_EMPTY_PATH, ret) == 0;
}

bool stall_path_is_local(const struct stall_path_status *status)
{
	// 9p is the disk that a virtual machine gets from its host.
	static const uint64_t local[] = {TMPFS_MAGIC,	    RAMFS_MAGIC,
					 BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC,
					 ZFS_MAGIC,	    BCACHEFS_MAGIC,
					 V9FS_MAGIC};

	for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
		if (status->filesystem == local[i])
			return true;
	// A program can serve what is on a device.
	return major(status->dev) != 0 && status->filesystem != FUSE_SUPER_MAGIC;
}

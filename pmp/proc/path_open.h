// SPDX-License-Identifier: Apache-2.0
// Files by their paths. The disk or the server that a path leads to may never answer, and the wait
// for it cannot be ended: so the reading child (read_child.h) opens them.
#ifndef STALL_PATH_OPEN_H
#define STALL_PATH_OPEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/path_status.h"
#include "proc/target_handle.h"

// Where a path begins.
struct stall_path {
	const struct stall_target *target; // NULL: ours
	int folder; // of ours, as openat(2)'s; or STALL_PATH_IN_PROC, STALL_PATH_IN_ROOT
	const char *name;
	uint64_t
		device; // on which it is, where that is known: one that does not answer holds up its
			// own files alone
};
#define STALL_PATH_IN_PROC (-1000)    // below /proc/PID of the target
#define STALL_PATH_IN_ROOT (-1001)    // in the target's own root, or in ours: links stay in it
#define STALL_PATH_FIRST_ROOT (-2000) // of stall_path_add_root(), and those below it

// *ret_fd: for reading, or with O_PATH: for the status alone, and of a file whose close(2) may wait
// (stall_path_pass()), but for children, which can be left behind. `ret_status` may be NULL. An errno
// that the kernel gave is that of the error; EINVAL: not a regular file. STALL_ERROR_LATE: it does not
// answer.
struct stall_error *stall_path_open(const struct stall_path *path, unsigned int how, int *ret_fd,
				    struct stall_path_status *ret_status);

// Sends the bytes as one message, with an open file for reading; does not block. Of a file that a
// program or another host serves, this process has O_PATH alone: the reading child opens it and sends
// it. Returns an errno; ETIME: its disk does not answer.
int stall_path_pass(int socket, const void *bytes, size_t size, int fd);

// Does the work with a file that may be open here with O_PATH alone, in the reading child: `arg` goes there
// and comes back. Returns an errno; ETIME: its disk does not answer.
int stall_path_work(int fd, stall_path_work_fn work, void *arg, size_t size);

// A folder that the user has named, or one of the system: all in it may be read with the rights of
// this process. *ret is for the `folder` of a stall_path, in this process and in its children; a name
// below it has no "..". An errno of the kernel is that of the error. `how`: STALL_PATH_TRUSTED, or 0:
// links in it stay in it, and none of its files counts as trusted.
struct stall_error *stall_path_add_root(const char *path, unsigned int how, int *ret);
bool stall_path_is_root(int folder);

// The path of what STALL_PATH_READ opens, without links. Errors are the same.
struct stall_error *stall_path_real(const struct stall_path *path, unsigned int how, char *ret,
				    size_t size);

// Opens in place of stall_path_open() from now on; returns an errno, or STALL_PATH_DISTRUST, which the
// text explains.
typedef int (*stall_path_opener_fn)(const struct stall_path *path, unsigned int how, int *ret_fd,
				    struct stall_path_status *ret, char *ret_text, size_t size);
#define STALL_PATH_DISTRUST (-1)
void stall_path_set_opener(stall_path_opener_fn opener);

struct stall_error *stall_path_status(const struct stall_path *path, unsigned int how,
				      struct stall_path_status *ret);

// The entries of a folder that was opened so, in pieces until *ret_size is 0; at least 64 KiB of room.
struct stall_error *stall_folder_next(int folder, void *ret, size_t size, size_t *ret_size);
struct stall_folder_entry {
	const char *name;   // neither "." nor ".."
	unsigned char type; // d_type of readdir(3)
};
// The next one of a piece, from *at on. False: there is none.
bool stall_folder_entry_next(const void *piece, size_t size, size_t *at,
			     struct stall_folder_entry *ret);

#endif

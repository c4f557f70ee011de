// SPDX-License-Identifier: Apache-2.0
// Whose files steer what is done with privileges. A pack or a debug file says where a breakpoint is
// set in a server, so none is used that another user can change: the file, each folder above it, and
// each link on the way and what it leads to, belong to root or to this process's user, and nobody
// else can write to them. stallscope/base/trust.py has the same rule; docs/design.md gives the
// reasons.
#ifndef STALL_TRUST_H
#define STALL_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

#define STALL_TRUST_OWNERS 6

struct stall_trust {
	uid_t owners[STALL_TRUST_OWNERS]; // root among them
	size_t owner_count;
	gid_t group;   // whose right to write counts as an owner's: 0, or that of this user alone
	bool everyone; // anything is used
};

// Of this process's user. To be called before a process changes its uid.
struct stall_trust stall_trust_own(void);
// The same for a file or folder that the user has named. A process that has no more privileges than
// its user uses each of these.
struct stall_trust stall_trust_named(void);
// One more user whose files are used.
void stall_trust_add(struct stall_trust *trust, uid_t uid);

// Opens a path as open(2) does with these flags, checks all on the way, and returns the descriptor
// of the very file that was checked; it does not wait for a FIFO. A relative path is below `dirfd`,
// whose own folders are not checked again and whose name `dir` is for messages; with AT_FDCWD
// (`dir` may be NULL) all folders from the root on are. STALL_ERROR_PERMISSION with errnum 0: it is
// there and not trusted; the message names what, why, and what to do. Otherwise errnum is that of
// open(2).
struct stall_error *stall_trusted_open(const struct stall_trust *trust, int dirfd, const char *dir,
				       const char *path, int flags, int *ret);
bool stall_is_distrust(const struct stall_error *err);

// NULL, or why the open file `fd` (also with O_PATH) is not used, whatever folder it is in.
struct stall_error *stall_trust_check(const struct stall_trust *trust, int fd, const char *path);

#endif

// SPDX-License-Identifier: Apache-2.0
// What libc's function names say about a wait. Frames of glibc 2.4 to 2.43.
#ifndef STALL_LOCK_NAMES_H
#define STALL_LOCK_NAMES_H

enum stall_wait_name {
	STALL_WAIT_FOREIGN, // no function of libc's locks
	STALL_WAIT_HELPER,  // libc's way into the kernel: its caller says which
	STALL_WAIT_MUTEX,
	STALL_WAIT_RDLOCK,
	STALL_WAIT_WRLOCK,
	STALL_WAIT_COND,
	STALL_WAIT_SEM,
	STALL_WAIT_JOIN,
	STALL_WAIT_INTERNAL,
	STALL_WAIT_OTHER, // a futex of the program's own, or of libc's but no lock
};

// `symbol` may carry a version (name@@GLIBC_2.2.5) and any prefix of underscores or "__GI_".
enum stall_wait_name stall_wait_name(const char *symbol);

#endif

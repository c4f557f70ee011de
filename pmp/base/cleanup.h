// SPDX-License-Identifier: Apache-2.0
// Scope-based cleanup, in place of ladders of goto.
#ifndef STALL_CLEANUP_H
#define STALL_CLEANUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((__cleanup__(f)))

static inline void stall_freep(void *p)
{
	free(*(void **)p);
}
#define _cleanup_free_ _cleanup_(stall_freep)

static inline void stall_closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
#define _cleanup_close_ _cleanup_(stall_closep)

static inline void stall_fclosep(FILE **file)
{
	if (*file)
		fclose(*file);
}
#define _cleanup_fclose_ _cleanup_(stall_fclosep)

static inline void stall_closedirp(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}
#define _cleanup_closedir_ _cleanup_(stall_closedirp)

// Returns the pointer and cancels its cleanup.
#define no_cleanup_ptr(p)                                                                          \
	({                                                                                         \
		__auto_type stall_ptr_ = (p);                                                      \
		(p) = NULL;                                                                        \
		stall_ptr_;                                                                        \
	})

#endif

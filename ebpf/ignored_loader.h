// SPDX-License-Identifier: Apache-2.0
// Threads that the wait programs ignore: they get no slot, and nothing of them is counted. Their
// entries are in the table in which every thread is looked up, so other threads cost what they cost
// without any.
#ifndef STALL_IGNORED_LOADER_H
#define STALL_IGNORED_LOADER_H

#include <sys/types.h>

#include "base/error.h"

struct stall_bpf_waits;

// Ignores a thread of a process that was added, until it ends or is heeded. `tid`: its number in its
// own pid namespace. STALL_ERROR_NO_PROCESS: there is no such thread. STALL_ERROR_LIMIT: there are
// STALL_MAX_IGNORED already.
struct stall_error *stall_bpf_waits_ignore(struct stall_bpf_waits *waits, pid_t pid, pid_t tid);
// Does nothing where it is not ignored.
void stall_bpf_waits_heed(struct stall_bpf_waits *waits, pid_t pid, pid_t tid);

// Of waits_loader.c: a process that is not watched any more.
void stall_ignored_remove(struct stall_bpf_waits *waits, pid_t pid);
// Of passes_loader.c: a pass has seen all threads of this process. Where nothing is attached, only
// this shows that a thread has ended.
void stall_ignored_passed(struct stall_bpf_waits *waits, pid_t pid);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "lock/lock_names.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

// By the start of the name. `whole`: nothing but a version may follow.
static const struct {
	const char *name;
	bool whole;
	enum stall_wait_name wait;
} names[] = {
	// pthread_cond_wait takes its mutex back by this one, so it stands before cond.
	{"pthread_mutex_", false, STALL_WAIT_MUTEX},
	{"pthread_rwlock_rdlock", false, STALL_WAIT_RDLOCK},
	{"pthread_rwlock_timedrdlock", false, STALL_WAIT_RDLOCK},
	{"pthread_rwlock_clockrdlock", false, STALL_WAIT_RDLOCK},
	{"pthread_rwlock_wrlock", false, STALL_WAIT_WRLOCK},
	{"pthread_rwlock_timedwrlock", false, STALL_WAIT_WRLOCK},
	{"pthread_rwlock_clockwrlock", false, STALL_WAIT_WRLOCK},
	{"pthread_cond_", false, STALL_WAIT_COND},
	{"sem_wait", false, STALL_WAIT_SEM},
	{"sem_timedwait", false, STALL_WAIT_SEM},
	{"sem_clockwait", false, STALL_WAIT_SEM},
	{"new_sem_wait", false, STALL_WAIT_SEM},
	{"old_sem_wait", false, STALL_WAIT_SEM},
	{"pthread_join", false, STALL_WAIT_JOIN},
	{"pthread_timedjoin", false, STALL_WAIT_JOIN},
	{"pthread_clockjoin", false, STALL_WAIT_JOIN},
	{"lll_timedwait_tid", false, STALL_WAIT_JOIN},
	{"lll_wait_tid", false, STALL_WAIT_JOIN},
	{"lll_lock_wait_private", false, STALL_WAIT_INTERNAL},
	{"lll_", false, STALL_WAIT_HELPER},
	{"L_lock_", false, STALL_WAIT_HELPER},
	{"L_mutex_lock_", false, STALL_WAIT_HELPER},
	{"L_cond_lock_", false, STALL_WAIT_HELPER},
	{"futex_", false, STALL_WAIT_HELPER},
	{"do_futex_wait", false, STALL_WAIT_HELPER},
	{"internal_syscall_cancel", false, STALL_WAIT_HELPER},
	{"syscall_cancel", false, STALL_WAIT_HELPER},
	{"tz_convert", false, STALL_WAIT_INTERNAL},
	{"malloc", true, STALL_WAIT_INTERNAL},
	{"libc_malloc", false, STALL_WAIT_INTERNAL},
	{"calloc", true, STALL_WAIT_INTERNAL},
	{"libc_calloc", true, STALL_WAIT_INTERNAL},
	{"realloc", true, STALL_WAIT_INTERNAL},
	{"libc_realloc", true, STALL_WAIT_INTERNAL},
	{"free", true, STALL_WAIT_INTERNAL},
	{"libc_free", true, STALL_WAIT_INTERNAL},
	{"cfree", true, STALL_WAIT_INTERNAL},
	{"int_malloc", false, STALL_WAIT_INTERNAL},
	{"int_free", false, STALL_WAIT_INTERNAL},
	{"arena_get", false, STALL_WAIT_INTERNAL},
	{"malloc_trim", true, STALL_WAIT_INTERNAL},
	{"mallinfo", false, STALL_WAIT_INTERNAL},
	{"malloc_stats", true, STALL_WAIT_INTERNAL},
	{"pthread_once", false, STALL_WAIT_OTHER},
	{"pthread_barrier_wait", false, STALL_WAIT_OTHER},
	{"syscall", true, STALL_WAIT_OTHER},
};

static const char *strip_prefix(const char *symbol)
{
	while (*symbol == '_')
		symbol++;
	if (!strncmp(symbol, "GI_", 3))
		symbol += 3;
	while (*symbol == '_')
		symbol++;
	return symbol;
}

enum stall_wait_name stall_wait_name(const char *symbol)
{
	symbol = strip_prefix(symbol);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		size_t length = strlen(names[i].name);
		if (strncmp(symbol, names[i].name, length))
			continue;
		if (!names[i].whole || !symbol[length] || symbol[length] == '@')
			return names[i].wait;
	}
	return STALL_WAIT_FOREIGN;
}

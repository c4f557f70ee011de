/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that this library interposes, and a few that are in another library before glibc
 * 2.34. */
#ifndef STALL_HOOKS_REAL_H
#define STALL_HOOKS_REAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define STALL_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define STALL_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* field, name, version it came with on x86-64 (sysdeps/unix/sysv/linux/x86_64/64 of glibc, *.abilist;
 * 2.34 added a second version to what came over from libpthread and kept the first), result,
 * arguments */
#define REAL_FUNCTIONS(F)                                                                          \
	F(mutex_lock, "pthread_mutex_lock", "GLIBC_2.2.5", int, (pthread_mutex_t *))               \
	F(mutex_trylock, "pthread_mutex_trylock", "GLIBC_2.2.5", int, (pthread_mutex_t *))         \
	F(mutex_timedlock, "pthread_mutex_timedlock", "GLIBC_2.2.5", int,                          \
	  (pthread_mutex_t *, const struct timespec *))                                            \
	F(mutex_clocklock, "pthread_mutex_clocklock", "GLIBC_2.30", int,                           \
	  (pthread_mutex_t *, clockid_t, const struct timespec *))                                 \
	F(mutex_unlock, "pthread_mutex_unlock", "GLIBC_2.2.5", int, (pthread_mutex_t *))           \
	F(rwlock_rdlock, "pthread_rwlock_rdlock", "GLIBC_2.2.5", int, (pthread_rwlock_t *))        \
	F(rwlock_wrlock, "pthread_rwlock_wrlock", "GLIBC_2.2.5", int, (pthread_rwlock_t *))        \
	F(rwlock_tryrdlock, "pthread_rwlock_tryrdlock", "GLIBC_2.2.5", int, (pthread_rwlock_t *))  \
	F(rwlock_trywrlock, "pthread_rwlock_trywrlock", "GLIBC_2.2.5", int, (pthread_rwlock_t *))  \
	F(rwlock_timedrdlock, "pthread_rwlock_timedrdlock", "GLIBC_2.2.5", int,                    \
	  (pthread_rwlock_t *, const struct timespec *))                                           \
	F(rwlock_timedwrlock, "pthread_rwlock_timedwrlock", "GLIBC_2.2.5", int,                    \
	  (pthread_rwlock_t *, const struct timespec *))                                           \
	F(rwlock_clockrdlock, "pthread_rwlock_clockrdlock", "GLIBC_2.30", int,                     \
	  (pthread_rwlock_t *, clockid_t, const struct timespec *))                                \
	F(rwlock_clockwrlock, "pthread_rwlock_clockwrlock", "GLIBC_2.30", int,                     \
	  (pthread_rwlock_t *, clockid_t, const struct timespec *))                                \
	F(rwlock_unlock, "pthread_rwlock_unlock", "GLIBC_2.2.5", int, (pthread_rwlock_t *))        \
	F(cond_wait, "pthread_cond_wait", "GLIBC_2.3.2", int,                                      \
	  (pthread_cond_t *, pthread_mutex_t *))                                                   \
	F(cond_timedwait, "pthread_cond_timedwait", "GLIBC_2.3.2", int,                            \
	  (pthread_cond_t *, pthread_mutex_t *, const struct timespec *))                          \
	F(cond_clockwait, "pthread_cond_clockwait", "GLIBC_2.30", int,                             \
	  (pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *))               \
	F(cond_signal, "pthread_cond_signal", "GLIBC_2.3.2", int, (pthread_cond_t *))              \
	F(cond_broadcast, "pthread_cond_broadcast", "GLIBC_2.3.2", int, (pthread_cond_t *))        \
	F(old_cond_wait, "pthread_cond_wait", "GLIBC_2.2.5", int,                                  \
	  (pthread_cond_t *, pthread_mutex_t *))                                                   \
	F(old_cond_timedwait, "pthread_cond_timedwait", "GLIBC_2.2.5", int,                        \
	  (pthread_cond_t *, pthread_mutex_t *, const struct timespec *))                          \
	F(old_cond_signal, "pthread_cond_signal", "GLIBC_2.2.5", int, (pthread_cond_t *))          \
	F(old_cond_broadcast, "pthread_cond_broadcast", "GLIBC_2.2.5", int, (pthread_cond_t *))    \
	F(fsync, "fsync", "GLIBC_2.2.5", int, (int))                                               \
	F(fdatasync, "fdatasync", "GLIBC_2.2.5", int, (int))                                       \
	F(sync_file_range, "sync_file_range", "GLIBC_2.6", int, (int, off_t, off_t, unsigned))     \
	F(msync, "msync", "GLIBC_2.2.5", int, (void *, size_t, int))                               \
	F(syncfs, "syncfs", "GLIBC_2.14", int, (int))                                              \
	F(fallocate, "fallocate", "GLIBC_2.10", int, (int, int, off_t, off_t))                     \
	F(posix_fallocate, "posix_fallocate", "GLIBC_2.2.5", int, (int, off_t, off_t))             \
	F(ftruncate, "ftruncate", "GLIBC_2.2.5", int, (int, off_t))                                \
	F(unlink, "unlink", "GLIBC_2.2.5", int, (const char *))                                    \
	F(unlinkat, "unlinkat", "GLIBC_2.4", int, (int, const char *, int))                        \
	F(rename, "rename", "GLIBC_2.2.5", int, (const char *, const char *))                      \
	F(renameat, "renameat", "GLIBC_2.4", int, (int, const char *, int, const char *))          \
	F(renameat2, "renameat2", "GLIBC_2.28", int,                                               \
	  (int, const char *, int, const char *, unsigned))                                        \
	F(pread, "pread", "GLIBC_2.2.5", ssize_t, (int, void *, size_t, off_t))                    \
	F(pread_chk, "__pread_chk", "GLIBC_2.4", ssize_t, (int, void *, size_t, off_t, size_t))    \
	F(pwrite, "pwrite", "GLIBC_2.2.5", ssize_t, (int, const void *, size_t, off_t))            \
	F(preadv, "preadv", "GLIBC_2.10", ssize_t, (int, const struct iovec *, int, off_t))        \
	F(pwritev, "pwritev", "GLIBC_2.10", ssize_t, (int, const struct iovec *, int, off_t))      \
	F(exit_at_once, "_exit", "GLIBC_2.2.5", void, (int))                                       \
	F(create, "pthread_create", "GLIBC_2.2.5", int,                                            \
	  (pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))                        \
	F(attr_init, "pthread_attr_init", "GLIBC_2.2.5", int, (pthread_attr_t *))                  \
	F(attr_getstacksize, "pthread_attr_getstacksize", "GLIBC_2.2.5", int,                      \
	  (const pthread_attr_t *, size_t *))                                                      \
	F(attr_getguardsize, "pthread_attr_getguardsize", "GLIBC_2.2.5", int,                      \
	  (const pthread_attr_t *, size_t *))                                                      \
	F(key_create, "pthread_key_create", "GLIBC_2.2.5", int,                                    \
	  (pthread_key_t *, void (*)(void *)))                                                     \
	F(setspecific, "pthread_setspecific", "GLIBC_2.2.5", int, (pthread_key_t, const void *))   \
	F(cleanup_push, "_pthread_cleanup_push", "GLIBC_2.2.5", void,                              \
	  (struct _pthread_cleanup_buffer *, void (*)(void *), void *))                            \
	F(cleanup_pop, "_pthread_cleanup_pop", "GLIBC_2.2.5", void,                                \
	  (struct _pthread_cleanup_buffer *, int))

struct real_functions {
#define F(field, name, version, result, arguments) result(*field) arguments;
	REAL_FUNCTIONS(F)
#undef F
	/* EBUSY instead of waiting, else as rdlock and wrlock. */
	int (*rwlock_rdlock_at_once)(pthread_rwlock_t *);
	int (*rwlock_wrlock_at_once)(pthread_rwlock_t *);
	/* ThreadSanitizer is behind us: it tracks locks by the calls it sees, so each call is
	 * passed on unchanged. Where it is before us it has seen them already. */
	bool follows_locks;
};
extern struct real_functions real __attribute__((visibility("hidden")));

/* Finds the functions that are not known yet. May run several times, and in several threads at
 * once. */
void real_resolve(void);

/* A successful function that does nothing: before the thread library is loaded there are no
 * threads, and before the loader has linked us no locks to wait for. */
long real_nothing(void);

/* The real function of that field. Other libraries' constructors call us before ours has run. */
#define REAL(field)                                                                                \
	(STALL_LIKELY(real.field)                                                                  \
		 ? real.field                                                                      \
		 : (real_resolve(),                                                                \
		    real.field ? real.field : (__typeof__(real.field))(void *)real_nothing))

#endif

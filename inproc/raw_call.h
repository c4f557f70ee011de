/* SPDX-License-Identifier: Apache-2.0 */
/* System calls, clocks and copies without the C library: its wrappers are interposed, by this
 * library and by others, set errno, and may be cancellation points. */
#ifndef STALL_RAW_CALL_H
#define STALL_RAW_CALL_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

/* Returns -errno where the call fails. */
static inline long raw_call(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
			    uint64_t f)
{
	register uint64_t r10 asm("r10") = d;
	register uint64_t r8 asm("r8") = e;
	register uint64_t r9 asm("r9") = f;
	long result;

	asm volatile("syscall"
		     : "=a"(result)
		     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		     : "rcx", "r11", "memory");
	return result;
}

#define raw_call0(number) raw_call(number, 0, 0, 0, 0, 0, 0)
#define raw_call1(number, a) raw_call(number, (uint64_t)(a), 0, 0, 0, 0, 0)
#define raw_call2(number, a, b) raw_call(number, (uint64_t)(a), (uint64_t)(b), 0, 0, 0, 0)
#define raw_call3(number, a, b, c)                                                                 \
	raw_call(number, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), 0, 0, 0)
#define raw_call4(number, a, b, c, d)                                                              \
	raw_call(number, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), 0, 0)
#define raw_call5(number, a, b, c, d, e)                                                           \
	raw_call(number, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d),               \
		 (uint64_t)(e), 0)
#define raw_call6(number, a, b, c, d, e, f)                                                        \
	raw_call(number, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d),               \
		 (uint64_t)(e), (uint64_t)(f))

/* Between these two no handler runs: one that exits by siglongjmp(3), or a cancellation, would leave
 * half done what others wait for, or what nobody does again. */
static inline uint64_t recorder_block_signals(void)
{
	uint64_t all = ~0ULL, blocked = 0;

	raw_call4(SYS_rt_sigprocmask, SIG_SETMASK, &all, &blocked, sizeof(all));
	return blocked;
}
static inline void recorder_restore_signals(uint64_t blocked)
{
	raw_call4(SYS_rt_sigprocmask, SIG_SETMASK, &blocked, NULL, sizeof(blocked));
}

/* Whether the eight bytes at a multiple of eight can be read: rt_sigprocmask(2) reads the set before it
 * checks `how`, which it refuses. A load would be a SIGSEGV. */
static inline bool recorder_is_readable(uintptr_t address)
{
	return raw_call4(SYS_rt_sigprocmask, 0x7fffffff, address, NULL, 8) == -EINVAL;
}

/* Other threads see stores before it before those after it. x86 keeps them in order, compilers do
 * not. */
#define recorder_write_barrier() __atomic_thread_fence(__ATOMIC_RELEASE)

/* vDSO: neither locks nor allocates, in any glibc since 2.17; else a system call. */
static inline uint64_t recorder_clock(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}
static inline uint64_t recorder_now(void)
{
	return recorder_clock(CLOCK_MONOTONIC);
}

/* Not memcpy(3): a sanitizer's version checks every byte, and a stack has bytes that may not be
 * read. */
static inline void recorder_copy(void *to, const void *from, size_t size)
{
	asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}
static inline void recorder_clear(void *to, size_t size)
{
	asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(0) : "memory");
}

#endif

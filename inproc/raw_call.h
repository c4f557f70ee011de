/* SPDX-License-Identifier: Apache-2.0 */
/* System calls without the C library: whose wrappers are interposed, by this library and by others,
 * set errno, and may be points of cancellation. */
#ifndef STALL_RAW_CALL_H
#define STALL_RAW_CALL_H

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>

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

#endif

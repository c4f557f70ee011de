// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_state.h"

#include <link.h>
#include <sys/mman.h>

#include "inproc/raw_call.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 // Linux 4.14
#endif

struct recorder_state recorder_state;
static bool is_wiped; // by the kernel, in children

// Before the program has threads.
__attribute__((constructor)) static void keep_from_forks(void)
{
	is_wiped =
		!raw_call3(SYS_madvise, &recorder_state, sizeof(recorder_state), MADV_WIPEONFORK);
}

void recorder_state_forget(void)
{
	struct recorder_state *state = &recorder_state;

	if (is_wiped)
		return;
	recorder_clear(state, offsetof(struct recorder_state, files));
	state->is_own = 1;
}

// An addition of 0 changes nothing that another thread writes.
__attribute__((no_sanitize("address"))) void recorder_touch(const volatile void *start,
							    uint64_t size)
{
	uintptr_t first = (uintptr_t)start & -STALL_RING_PAGE, end = (uintptr_t)start + size;

	for (uintptr_t page = first; page < end; page += STALL_RING_PAGE)
		__atomic_fetch_add((uint8_t *)page, 0, __ATOMIC_RELAXED);
}

// Of this library, or of the program that it is linked into.
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

// Its code may be on a disk that does not answer when a wait begins.
__attribute__((no_sanitize("address", "undefined"))) static void read_code(void)
{
	const uint8_t *file = (const uint8_t *)&__ehdr_start; // the first segment begins with it
	const ElfW(Phdr) *headers = (const void *)(file + __ehdr_start.e_phoff), *first = NULL;

	for (int i = 0; i < __ehdr_start.e_phnum; i++) {
		if (headers[i].p_type != PT_LOAD || (headers[i].p_flags & PF_W))
			continue;
		first = first ? first : &headers[i];
		const volatile uint8_t *start = file + (headers[i].p_vaddr - first->p_vaddr);
		for (uint64_t at = 0; at < headers[i].p_filesz; at += STALL_RING_PAGE)
			start[at];
	}
}

void recorder_touch_library(void)
{
	read_code();
	recorder_touch(&recorder_state, offsetof(struct recorder_state, files));
}

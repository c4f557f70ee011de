/* SPDX-License-Identifier: Apache-2.0 */
/* Where a thread is: registers, a copy of its stack, and the words that it waits for. */
#ifndef STALL_RECORDER_STACK_H
#define STALL_RECORDER_STACK_H

#include "inproc/recorder_slots.h"

/* Copies the stack from sp on, at most `room` bytes, and returns how many. *ret_whole: up to the end
 * of the stack, 0 not known. */
uint32_t recorder_stack_copy(struct recorder_ring *ring, struct recorder_thread *thread,
			     uintptr_t sp, uint8_t *to, uint32_t room, uint64_t *ret_whole);
/* The thread is the process's first one. */
void recorder_stack_is_first(struct recorder_thread *thread);
/* Whether both addresses are on the thread's own stack. */
bool recorder_is_one_stack(struct recorder_thread *thread, uintptr_t a, uintptr_t b);
uint64_t recorder_fs_base(void);
void recorder_regs(const struct recorder_place *place, uint64_t regs[STALL_BPF_PT_REGS]);
void recorder_read_words(uint64_t object, uint8_t words[STALL_RING_WORDS]);
struct stall_ring_stack *recorder_slot_stack(struct recorder_ring *ring, uint32_t index);

#endif

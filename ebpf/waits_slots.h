// SPDX-License-Identifier: Apache-2.0
// Slots that are freed and waits that are ended from user space, while no program does.
#ifndef STALL_WAITS_SLOTS_H
#define STALL_WAITS_SLOTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct stall_bpf_waits;

// Waits until all programs that run now have ended. Where this fails, slots stay taken: a slot that
// a program still writes must not be reused.
bool stall_waits_have_programs_ended(struct stall_bpf_waits *waits);

// No thread of the process finds its slot any more.
void stall_waits_forget_threads(struct stall_bpf_waits *waits, pid_t pid);
void stall_waits_free_slots(struct stall_bpf_waits *waits, pid_t pid);
// Frees the slot of a thread that no program finds any more.
void stall_waits_free_slot(struct stall_bpf_waits *waits, uint32_t index);
// While nothing is attached: frees the slot of a thread that has ended. `tid`: the kernel's number.
void stall_waits_free_slot_of(struct stall_bpf_waits *waits, uint32_t index, uint32_t tid);

#endif

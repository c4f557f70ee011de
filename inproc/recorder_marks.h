/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that threads have waited long for, counted by a hash: who lets them go is recorded. */
#ifndef STALL_RECORDER_MARKS_H
#define STALL_RECORDER_MARKS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether somebody has waited long for a word with the hash of this one: a few instructions, for
 * the paths of unlock and signal. False is sure. */
extern uint32_t recorder_marks[] __attribute__((visibility("hidden")));
#define RECORDER_MARKS 4096
/* objects are 8 bytes apart at least */
static inline uint16_t recorder_mark_of(uint64_t object)
{
	return (object * 0x9e3779b97f4a7c15) >> 52;
}
static inline uint32_t recorder_marked(uint64_t object)
{
	return __atomic_load_n(&recorder_marks[recorder_mark_of(object)], __ATOMIC_RELAXED);
}
static inline bool recorder_is_marked(uint64_t object)
{
	return recorder_marked(object) != 0;
}
/* One more waits there, since start_ns, and one less. */
void recorder_marks_add(uint16_t mark, uint64_t start_ns);
void recorder_marks_remove(uint16_t mark);
/* False: nobody has waited for a word with its hash for that long. */
bool recorder_mark_is_older(uint64_t object, uint64_t since_ns);
void recorder_marks_forget(void);

#endif

// SPDX-License-Identifier: Apache-2.0
// What is done in a stall has little time, on a machine that may have no CPU to spare.
#ifndef STALL_PRIORITY_H
#define STALL_PRIORITY_H

// For this process and the children that it makes from now on; where it leads a session, for that.
// Refused without CAP_SYS_NICE, which costs time and nothing else.
void stall_raise_priority(void);

#endif

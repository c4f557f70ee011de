// SPDX-License-Identifier: Apache-2.0
// Work during a stall has little time, on a machine that may have no free CPU.
#ifndef STALL_PRIORITY_H
#define STALL_PRIORITY_H

// For this process and the children that it makes from now on; where it leads a session, for the
// session. Has no effect without CAP_SYS_NICE: the work then only takes longer.
void stall_raise_priority(void);

#endif

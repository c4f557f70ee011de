// SPDX-License-Identifier: Apache-2.0
// Threads that did not run while their stacks were copied, and whose stacks may be wrong in spite of
// that: others write to them.
#ifndef STALL_LABEL_REASON_H
#define STALL_LABEL_REASON_H

#include "snapshot/snapshot.h"

// Labels them raced, with the reason. They are recognized by the system call that they are in.
void stall_label_reasons_add(struct stall_snapshot *snapshot);

#endif

// SPDX-License-Identifier: Apache-2.0
// An input of fuzz_sessions.c: a layout, zeros up to IMAGE_LAYOUT, then memory that is at IMAGE_BASE.
#ifndef STALL_SESSIONS_IMAGE_H
#define STALL_SESSIONS_IMAGE_H

#include <stdint.h>

#define IMAGE_LAYOUT 1024
#define IMAGE_BASE UINT64_C(0x200000000000)
#define IMAGE_MEMORY 16384
#define IMAGE_THREADS 3
#define IMAGE_BLOCKS 64 // from one control block to the next

#endif

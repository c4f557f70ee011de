// SPDX-License-Identifier: Apache-2.0
// A mapping of a file that another process may cut at any time. Reading a page that the file does not
// have any more raises SIGBUS (mmap(2)); here such pages become zeros of our own instead, and the
// mapping remembers it.
#ifndef STALL_RING_MAP_H
#define STALL_RING_MAP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define STALL_MAX_RINGS 4096 // as many as there can be --pid

// `fd` must stay open for as long as the mapping. Children that are forked do not have the mapping.
struct stall_error *stall_ring_map(int fd, size_t size, bool writable, void **ret);
void stall_ring_unmap(void *base, size_t size);

// A page of it has been missing.
bool stall_ring_map_was_cut(const void *base);

#endif

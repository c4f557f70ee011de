// SPDX-License-Identifier: Apache-2.0
// Where a server's build keeps things in its memory: offsets and sizes by name, as the caller
// measured them or found them in a pack. This program knows no layout of a server by itself.
#ifndef STALL_LAYOUT_H
#define STALL_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STALL_LAYOUT_MAX 512 // entries

struct stall_layout {
	struct stall_layout_entry *entries; // sorted by key
	size_t count;
};

// "KEY=NUMBER KEY=NUMBER": numbers are decimal or 0x, and may be negative. A key that is there gets
// the new value. On an error the layout is as it was.
struct stall_error *stall_layout_add(struct stall_layout *layout, const char *text);
// Adds the entries of `other`, which replace those of the same key.
struct stall_error *stall_layout_join(struct stall_layout *layout,
				      const struct stall_layout *other);
// False where the key is not there.
bool stall_layout_get(const struct stall_layout *layout, const char *key, int64_t *ret);
void stall_layout_deinit(struct stall_layout *layout);

#endif

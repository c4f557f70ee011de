// SPDX-License-Identifier: Apache-2.0
// Paths as the kernel shows them of another process.
#ifndef STALL_PATHS_H
#define STALL_PATHS_H

#include <stdbool.h>

// Removes what the kernel appends to the path of a file that was unlinked. Whether it was there: a
// name may really end so.
bool stall_path_cut_deleted(char *path);

// The kernel shows paths of another process from our root, not from its own. Returns the path as the
// process sees it: without `root`, which is "" for none or for one that is not below ours (a
// container's).
const char *stall_path_in_root(const char *path, const char *root);

#endif

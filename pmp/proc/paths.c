// SPDX-License-Identifier: Apache-2.0
#include "proc/paths.h"

#include <string.h>

bool stall_path_cut_deleted(char *path)
{
	static const char suffix[] = " (deleted)";
	size_t length = strlen(path), cut = sizeof(suffix) - 1;

	if (length <= cut || strcmp(path + length - cut, suffix) != 0)
		return false;
	path[length - cut] = '\0';
	return true;
}

const char *stall_path_in_root(const char *path, const char *root)
{
	size_t length = strlen(root);

	return length && !strncmp(path, root, length) && path[length] == '/' ? path + length : path;
}

// SPDX-License-Identifier: Apache-2.0
#include "demangle.h"

#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "worker.h"

// The C++ runtime's own, with the C++ ABI's name for it (cxxabi.h is a C++ header).
extern char *__cxa_demangle(const char *mangled, char *buffer, size_t *length, int *status);

// A short hostile name can stand for gigabytes: what the input's length does not bound is bounded
// by the worker's memory limit and its deadline.
#define MAX_MANGLED 2048

char *stall_demangle(const char *linkage)
{
	int status = 0;

	// GCC's clones and local functions start so too. Without the check "f" would be "float".
	if (strncmp(linkage, "_Z", 2) != 0 || strlen(linkage) > MAX_MANGLED)
		return NULL;
	_cleanup_free_ char *name = __cxa_demangle(linkage, NULL, NULL, &status);
	if (!name || status != 0 || strlen(name) >= STALL_MAX_SYMBOL)
		return NULL;
	return no_cleanup_ptr(name);
}

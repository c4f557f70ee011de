// SPDX-License-Identifier: Apache-2.0
#include "unwind/demangle.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "base/cleanup.h"
#include "unwind/unwound.h"

// The C++ runtime's own, with the C++ ABI's name for it (cxxabi.h is a C++ header).
extern char *__cxa_demangle(const char *mangled, char *buffer, size_t *length, int *status);

#define MAX_MANGLED 2048
// Each substitution of a hostile name can double its output: 300 bytes can take minutes and all
// memory. libstdc++ has no limit for that, and does not export the variant that could be stopped. A
// real name of this length takes less than a millisecond.
#define HARMLESS 100
#define CPU_LIMIT_US 200000

// Beyond it SIGPROF ends the process: the worker, and the next worker does not get its file.
static void limit_cpu(suseconds_t us)
{
	const struct itimerval limit = {.it_value.tv_usec = us};

	setitimer(ITIMER_PROF, &limit, NULL);
}

char *stall_demangle(const char *linkage)
{
	int status = 0;

	// GCC's clones and local functions start like this, too. Without the check "f" would be
	// "float".
	if (strncmp(linkage, "_Z", 2) != 0 || strlen(linkage) > MAX_MANGLED)
		return NULL;
	bool limited = strlen(linkage) > HARMLESS;
	if (limited)
		limit_cpu(CPU_LIMIT_US);
	_cleanup_free_ char *name = __cxa_demangle(linkage, NULL, NULL, &status);
	if (limited)
		limit_cpu(0);
	if (!name || status != 0 || strlen(name) >= STALL_MAX_SYMBOL)
		return NULL;
	return no_cleanup_ptr(name);
}

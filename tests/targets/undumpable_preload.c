// SPDX-License-Identifier: Apache-2.0
// Preloaded, it makes a program one that nobody but root may read: /proc/PID/mem, maps and exe
// cannot be read, as those of a server that changed its user.
#include <sys/prctl.h>

static void __attribute__((constructor)) hide(void)
{
	prctl(PR_SET_DUMPABLE, 0);
}

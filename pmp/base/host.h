// SPDX-License-Identifier: Apache-2.0
// The machine that a capture is made on.
#ifndef STALL_HOST_H
#define STALL_HOST_H

#include <sys/utsname.h>
#include <unistd.h>

struct stall_host {
	struct utsname name;
	long cpus;
};

// Read early: a process without privileges may not be allowed to.
static inline void stall_host_init(struct stall_host *host)
{
	*host = (struct stall_host){.cpus = sysconf(_SC_NPROCESSORS_ONLN)};
	uname(&host->name);
}

#endif

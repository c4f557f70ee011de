// SPDX-License-Identifier: Apache-2.0
// Demangles C++ names (Itanium ABI).
#ifndef STALL_DEMANGLE_H
#define STALL_DEMANGLE_H

// A new string (free it), or NULL where the name is not mangled, or one of both forms is too long.
// A name that takes 0.2 s of CPU time ends the process, by SIGPROF: only a hostile one does.
char *stall_demangle(const char *linkage);

#endif

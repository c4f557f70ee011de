// SPDX-License-Identifier: Apache-2.0
// C++ names (Itanium ABI) as people read them.
#ifndef STALL_DEMANGLE_H
#define STALL_DEMANGLE_H

// A new string (free it), or NULL where the name is not mangled, or too long either way. A name that
// takes 0.2 s of CPU time ends the process, by SIGPROF: only a hostile one does.
char *stall_demangle(const char *linkage);

#endif

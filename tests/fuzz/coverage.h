// SPDX-License-Identifier: Apache-2.0
// What code an input reaches, in libraries that were built with -Dfuzz=true.
#ifndef COVERAGE_H
#define COVERAGE_H

#include <stdbool.h>
#include <stddef.h>

// Whether code was reached since the last call that was not before. False without such libraries.
bool coverage_grew(void);
// How much was reached by all inputs; 0 without such libraries.
size_t coverage_size(void);

#endif

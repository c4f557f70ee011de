// SPDX-License-Identifier: Apache-2.0
// split N [NANOSECONDS]: as flip, with stacks in pieces that are taken and given back as the threads go down and
// up (-fsplit-stack). Commands: `turns`.
#include "flip.c"
